"""Discord: one message per case in a channel, which is edited when the case changes.

A webhook that is executed with `wait=true` responds with the message, whose id later edits it
(`PATCH .../messages/{id}`). An edited message alerts no one, so a case whose severity rises, or
whose cause is another one than was sent, is posted again. Names and texts of people and models are
untrusted: markup is escaped, and `allowed_mentions` permits no mention.

Limits: 2,000 characters of a content, 4,096 of a description, 1,024 of a field, 2,048 of a footer,
6,000 in all embeds.
Responses: 200 with the message, 400 for a message that is not valid, 404 if the webhook or the
message is gone (`code` 10015 or 10008), 429 with `Retry-After`.
Source: discord/discord-api-docs, "Webhook", "Message" and "Rate limits", of August 2026.
"""

from __future__ import annotations

import json
import time
from typing import Any, ClassVar, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from sentinel.config.field_types import SecretUrl
from sentinel.model.clean_text import clean, clean_url
from sentinel.model.delivery import HttpRequest, Rejection, Response
from sentinel.model.finding import Severity
from sentinel.model.json_safe import parse_object
from sentinel.model.message import Message, build_message
from sentinel.model.notification import Notification
from sentinel.model.rfc3339 import format_rfc3339

_ESCAPES = {character: f"\\{character}" for character in "\\*_~`|>#[]<:"} | {"@": "\uff20"}
"""Markup, addresses (by the colon), and mentions."""

_COLORS = {Severity.CRITICAL: 0xD93025, Severity.WARNING: 0xF29900, Severity.INFO: 0x1A73E8}
_EMOJI = {
    Severity.CRITICAL: "\U0001f534",
    Severity.WARNING: "\U0001f7e0",
    Severity.INFO: "\U0001f535",
}
_RESOLVED_COLOR, _RESOLVED_EMOJI = 0x1E8E3E, "\u2705"
_UNKNOWN_MESSAGE_CODE = 10008
_MAX_HEADLINE_CHARS = 500
_MAX_SENTENCE_CHARS = 250
_MAX_REMEDY_CHARS = 800
_MAX_ALSO_CHARS = 80
_MAX_RUN_CHARS = 400
_MAX_LINKS_CHARS = 1024
_MAX_FACTS, _MAX_ALSO, _MAX_NOTES = 6, 4, 2


@dataclass(config=ConfigDict(extra="forbid", hide_input_in_errors=True, str_strip_whitespace=True))
class Discord:
    """`url` is the URL of the webhook; it may contain `?thread_id=` for a thread."""

    url: SecretUrl

    can_update: ClassVar[bool] = True

    def render(
        self, notification: Notification, delivery_id: str, receipt: str | None
    ) -> HttpRequest:
        """A new message, or with `receipt` the change of that message."""
        message = build_message(notification, time.time())
        content = {
            "content": _headline(message),
            "embeds": [_embed(message, notification.time, delivery_id)],
        }
        if not receipt:
            return self._request("POST", "", content)
        if not notification.reason.is_new_message:
            return self._request("PATCH", f"/messages/{receipt}", content)
        moved = {"content": f"{_headline(message)}\n*Continued in a newer message.*", "embeds": []}
        return self._request(
            "POST", "", content, self._request("PATCH", f"/messages/{receipt}", moved)
        )

    def is_accepted(self, response: Response) -> bool:
        """Discord responds 200 with the message."""
        return response.status == 200 and bool(self.receipt(response))

    def receipt(self, response: Response) -> str | None:
        """The id of the message."""
        message_id = parse_object(response.body).get("id")
        return message_id if isinstance(message_id, str) and message_id.isdecimal() else None

    def rejection(self, response: Response) -> Rejection | None:
        """Why a request was not accepted: 404 may mean that the message was deleted."""
        is_unknown = parse_object(response.body).get("code") == _UNKNOWN_MESSAGE_CODE
        return Rejection.UNKNOWN_RECEIPT if response.status == 404 and is_unknown else None

    def explain(self, response: Response) -> str:
        """What to do if the webhook is gone."""
        is_gone = response.status in {401, 404}
        return "The webhook was deleted: create one in the settings of the channel." * is_gone

    def _request(
        self,
        method: Literal["POST", "PATCH"],
        path: str,
        content: dict[str, Any],
        follow_up: HttpRequest | None = None,
    ) -> HttpRequest:
        parts = urlsplit(self.url.get_secret_value())
        query = dict(parse_qsl(parts.query)) | ({"wait": "true"} if method == "POST" else {})
        url = (parts.scheme, parts.netloc, parts.path.rstrip("/") + path, urlencode(query), "")
        message = {**content, "allowed_mentions": {"parse": []}}
        body = json.dumps(message, ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json"}
        return HttpRequest(urlunsplit(url), body, headers, method, follow_up=follow_up)


def _headline(message: Message) -> str:
    emoji = _RESOLVED_EMOJI if message.status == "resolved" else _EMOJI[message.severity]
    return f"{emoji} **{message.cut_headline(_MAX_HEADLINE_CHARS, _ESCAPES)}**"


def _embed(message: Message, time: float, delivery_id: str) -> dict[str, Any]:
    is_resolved = message.status == "resolved"
    links = _links(message)
    return {
        "description": _description(message),
        "color": _RESOLVED_COLOR if is_resolved else _COLORS[message.severity],
        "fields": [{"name": "Links", "value": links}] if links else [],
        "footer": {"text": f"{_footer(message)} · {delivery_id[:8]}"},
        **({"timestamp": text} if (text := format_rfc3339(time)) else {}),
    }


def _footer(message: Message) -> str:
    # A footer shows markup as it stands, a backslash included.
    return clean(message.run, _MAX_RUN_CHARS, {"@": "\uff20", "<": "\u2039"})


def _description(message: Message) -> str:
    paragraphs = [
        [_escape(message.since), *_list(message.facts[:_MAX_FACTS])],
        _titled("What to do", [_escape(message.remedy, _MAX_REMEDY_CHARS)]),
        _titled("Last good checkpoint", [_escape(message.checkpoint)]),
        _titled("Also in this case", _list(message.also[:_MAX_ALSO], _MAX_ALSO_CHARS)),
        [_escape(note) for note in message.notes[:_MAX_NOTES]],
    ]
    texts = ("\n".join(filter(None, lines)) for lines in paragraphs)
    return "\n\n".join(filter(None, texts))


def _links(message: Message) -> str:
    """As many links as fit into a field."""
    text = ""
    for link in message.links:
        url = clean_url(link.url)
        longer = f"{text} · [{_escape(link.label)}]({url})".removeprefix(" · ")
        if url and len(longer) <= _MAX_LINKS_CHARS:
            text = longer
    return text


def _titled(title: str, lines: list[str]) -> list[str]:
    shown = [line for line in lines if line]
    return [f"**{title}**", *shown] if shown else []


def _list(texts: tuple[str, ...], max_chars: int = _MAX_SENTENCE_CHARS) -> list[str]:
    return [f"- {_escape(text, max_chars)}" for text in texts]


def _escape(text: str, max_chars: int = _MAX_SENTENCE_CHARS) -> str:
    return clean(text, max_chars, _ESCAPES)
