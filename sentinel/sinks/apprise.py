"""Apprise: one notification through one of the services of the library apprise.

Teams, Telegram, Opsgenie, ntfy, Matrix, Pushover and over a hundred more. Needs the extra
`apprise`. The library escapes text for the markup of the service, except mentions and links, so
their characters are replaced by similar ones. A message cannot be changed.
Source: github.com/caronc/apprise, version 2.2 of November 2026.
"""

from __future__ import annotations

import time
from typing import ClassVar, Literal

from pydantic import ConfigDict, SecretStr, field_validator
from pydantic.dataclasses import dataclass

from sentinel.model.clean_text import clean, clean_url
from sentinel.model.delivery import AppriseCall, Response
from sentinel.model.finding import Severity
from sentinel.model.message import Message, build_message
from sentinel.model.notification import Notification

_ESCAPES = {"@": "\uff20", "<": "\u2039", ">": "\u203a", "[": "(", "]": ")", "`": "'"}
"""Characters of mentions and links, each with one that looks similar."""

_KINDS: dict[Severity, Literal["info", "warning", "failure"]] = {
    Severity.CRITICAL: "failure",
    Severity.WARNING: "warning",
    Severity.INFO: "info",
}
_MAX_TITLE_CHARS = 200
_MAX_LINE_CHARS = 300
_MAX_REMEDY_CHARS = 800
_MAX_ITEMS = 4

_REMEDIES = {
    "AppriseNotInstalled": "Install the library: pip install 'train-sentinel[apprise]'.",
    "AppriseUrlError": "Check the URL: the wiki of apprise shows the form for each service.",
    "AddressRefusedError": "The URL is not encrypted: use its form with TLS, or set allow_http.",
}


@dataclass(config=ConfigDict(extra="forbid", hide_input_in_errors=True, str_strip_whitespace=True))
class Apprise:
    """`url` names the service and its secrets, such as `tgram://token/chat` or `ntfy://topic`.

    `allow_http` permits unencrypted requests to other machines.
    """

    url: SecretStr
    allow_http: bool = False

    can_update: ClassVar[bool] = False

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: SecretStr) -> SecretStr:
        scheme, separator, rest = url.get_secret_value().partition("://")
        if not (separator and rest and scheme.isalnum()):
            raise ValueError("must be a URL of apprise such as ntfy://topic")
        return url

    def render(
        self, notification: Notification, delivery_id: str, receipt: str | None
    ) -> AppriseCall:
        """Title and text, which the service formats."""
        del receipt
        message = build_message(notification, time.time())
        return AppriseCall(
            self.url.get_secret_value(),
            message.cut_headline(_MAX_TITLE_CHARS, _ESCAPES),
            _text(message, delivery_id),
            "success" if message.status == "resolved" else _KINDS[message.severity],
            self.allow_http,
        )

    def is_accepted(self, response: Response) -> bool:
        """Whether apprise reports that the service accepted the message."""
        return not response.error and response.status == 200

    def explain(self, response: Response) -> str:
        """What to do about an error of the library."""
        return _REMEDIES.get(response.error, "")

    def receipt(self, response: Response) -> None:
        """None: apprise does not identify what it sent."""
        del response


def _text(message: Message, delivery_id: str) -> str:
    links = ((link.label, clean_url(link.url)) for link in message.links[:_MAX_ITEMS])
    lines = [
        _escape(message.since),
        *(f"- {_escape(fact)}" for fact in message.facts[:_MAX_ITEMS]),
        f"What to do: {_escape(message.remedy, _MAX_REMEDY_CHARS)}" if message.remedy else "",
        f"Last good checkpoint: {_escape(message.checkpoint)}" if message.checkpoint else "",
        *(f"Also: {_escape(each)}" for each in message.also[:_MAX_ITEMS]),
        *(_escape(note) for note in message.notes[:_MAX_ITEMS]),
        *(f"{_escape(label)}: {url}" for label, url in links if url),
        f"{_escape(message.run)} ({delivery_id[:8]})",
    ]
    return "\n".join(filter(None, lines))


def _escape(text: str, max_chars: int = _MAX_LINE_CHARS) -> str:
    return clean(text, max_chars, _ESCAPES)
