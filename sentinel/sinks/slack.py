"""Slack: one notification as one Block Kit message of an incoming webhook.

Names and texts of people and models are untrusted. They are escaped and cleaned, so that they
contain no mention, no link and no hidden character. The message stays within the limits of Slack:
150 characters in a header, 3,000 in a section, 10 fields, 50 blocks, about 13,000 characters.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import quote

from pydantic import ConfigDict, SecretStr, field_validator
from pydantic.dataclasses import dataclass

from sentinel.config.url_policy import url_refusal
from sentinel.model.clean_text import clean
from sentinel.model.delivery import HttpRequest, Response
from sentinel.model.finding import Severity
from sentinel.model.message import Message, build_message
from sentinel.model.notification import Notification

_SEVERITY_EMOJI = {
    Severity.CRITICAL: ":red_circle:",
    Severity.WARNING: ":large_orange_circle:",
    Severity.INFO: ":large_blue_circle:",
}
_RESOLVED_EMOJI = ":white_check_mark:"
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "\uff20", "`": "\u02cb"}
_MAX_HEADLINE_CHARS = 125
_MAX_SENTENCE_CHARS = 1500
_MAX_FACT_CHARS = 300
_MAX_LINE_CHARS = 300
_MAX_NAME_CHARS = 200
_MAX_NOTE_CHARS = 500
_MAX_NOTES = 3
_LINK_SAFE = ":/?#[]@!$&'()*+,;=%-._~"


@dataclass(config=ConfigDict(extra="forbid", hide_input_in_errors=True, str_strip_whitespace=True))
class Slack:
    """`url` is the URL of the incoming webhook.

    `link`, a web address, is added to each message; `{run}` and `{detector}` in it are replaced.
    """

    url: SecretStr
    link: str | None = None

    can_update: ClassVar[bool] = False

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: SecretStr) -> SecretStr:
        if refusal := url_refusal(url.get_secret_value()):
            raise ValueError(refusal)
        return url

    @field_validator("link")
    @classmethod
    def _check_link(cls, link: str | None) -> str | None:
        if link is not None and (refusal := url_refusal(link, allow_http=True)):
            raise ValueError(refusal)
        return link

    def render(
        self, notification: Notification, delivery_id: str, receipt: str | None
    ) -> HttpRequest:
        """The message. It shows `delivery_id`: Slack drops no repeats, but people see them."""
        del receipt
        message = build_message(self._with_link(notification), time.time())
        body = {
            "text": _headline(message),
            "blocks": self._blocks(message, delivery_id, notification.name),
            "mrkdwn": False,
            "unfurl_links": False,
            "unfurl_media": False,
            "link_names": 0,
        }
        return HttpRequest(
            self.url.get_secret_value(),
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )

    def is_accepted(self, response: Response) -> bool:
        """Slack responds 200 and `ok`; the login page of a proxy has status 200 as well."""
        return response.status == 200 and response.body.strip() == "ok"

    def receipt(self, response: Response) -> None:
        """None: a message of an incoming webhook has no identifier."""
        del response

    def _with_link(self, notification: Notification) -> Notification:
        """The notification with the address of this sink's own dashboard, if it has one."""
        if not self.link:
            return notification
        key = notification.incident.key
        link = self.link.replace("{run}", quote(key.run, safe=""))
        link = link.replace("{detector}", quote(key.detector, safe=""))
        return replace(notification, context=replace(notification.context, dashboard_url=link))

    def _blocks(self, message: Message, delivery_id: str, name: str) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = [
            {"type": "header", "text": {"type": "plain_text", "text": _headline(message)}},
            _section(_details(message)),
        ]
        if message.remedy:
            blocks.append(_section(f"*What to do*\n{_escape(message.remedy, _MAX_SENTENCE_CHARS)}"))
        if message.checkpoint:
            checkpoint = _escape(message.checkpoint, _MAX_LINE_CHARS)
            blocks.append(_section(f"*Last good checkpoint*\n{checkpoint}"))
        if message.also:
            lines = [f"• {_escape(text, _MAX_LINE_CHARS)}" for text in message.also]
            blocks.append(_section("\n".join(["*Also in this case*", *lines])))
        if message.notes:
            notes = [_escape(note, _MAX_NOTE_CHARS) for note in message.notes[:_MAX_NOTES]]
            blocks.append(_section("\n".join(notes)))
        return [*blocks, {"type": "context", "elements": self._context(message, delivery_id, name)}]

    def _context(self, message: Message, delivery_id: str, name: str) -> list[dict[str, Any]]:
        elements = [
            _markdown(_escape(message.run, _MAX_NOTE_CHARS)),
            *(_markdown(_link(link.label, link.url)) for link in message.links),
        ]
        name = _escape(name, _MAX_NAME_CHARS)
        return [*elements, _markdown(f"{name} · {delivery_id[:8]}")]


def _headline(message: Message) -> str:
    is_resolved = message.status == "resolved"
    emoji = _RESOLVED_EMOJI if is_resolved else _SEVERITY_EMOJI[message.severity]
    return f"{emoji} {message.cut_headline(_MAX_HEADLINE_CHARS, _ESCAPES)}"


def _details(message: Message) -> str:
    """Since when, and the facts."""
    facts = (f"• {_escape(fact, _MAX_FACT_CHARS)}" for fact in message.facts)
    return "\n".join([_escape(message.since, _MAX_LINE_CHARS), *facts])


def _link(label: str, url: str) -> str:
    return f"<{quote(url, safe=_LINK_SAFE)}|{_escape(label, _MAX_NAME_CHARS)}>"


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": _markdown(text)}


def _markdown(text: str) -> dict[str, Any]:
    # With `verbatim`, Slack turns no text into links or mentions.
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _escape(text: str, max_chars: int) -> str:
    return clean(text, max_chars, _ESCAPES)
