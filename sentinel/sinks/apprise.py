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

from sentinel.model.delivery import AppriseCall, Response
from sentinel.model.finding import Severity
from sentinel.model.message import build_message
from sentinel.model.notification import Notification
from sentinel.sinks._plain_text import plain_headline, plain_text

_KINDS: dict[Severity, Literal["info", "warning", "failure"]] = {
    Severity.CRITICAL: "failure",
    Severity.WARNING: "warning",
    Severity.INFO: "info",
}

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
            plain_headline(message),
            plain_text(message, delivery_id),
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
