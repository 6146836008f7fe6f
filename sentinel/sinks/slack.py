"""Slack: one page as one message of an incoming webhook, in Block Kit.

Names and texts that people or models made are shown as they are and can do nothing: no mention,
no link, no hidden character. Slack's limits (150 characters in a header, 3,000 in a section,
10 fields, 50 blocks, about 13,000 in all) are kept with room to spare.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any
from urllib.parse import quote

from pydantic import ConfigDict, SecretStr, field_validator
from pydantic.dataclasses import dataclass

from sentinel.config.url_policy import url_refusal
from sentinel.model.diagnosis import Diagnosis
from sentinel.model.finding import Severity
from sentinel.model.incident import Incident
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN
from sentinel.model.request import Request

_SEVERITY_EMOJI = {
    Severity.CRITICAL: ":red_circle:",
    Severity.WARNING: ":large_orange_circle:",
    Severity.INFO: ":large_blue_circle:",
}
_REASON_PREFIXES = {
    NotificationReason.ESCALATED: "WORSE, now ",
    NotificationReason.INCIDENT_ADDED: "More of it, still ",
    NotificationReason.CAUSE_FOUND: "Cause found, still ",
}
_RESOLVED_EMOJI = ":white_check_mark:"
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "\uff20", "`": "\u02cb"}
_MAX_SENTENCE_CHARS, _MAX_FIELD_CHARS, _MAX_NAME_CHARS, _MAX_TITLE_CHARS, _MAX_WORD_CHARS = (
    1500,
    200,
    60,
    44,
    40,
)
_MAX_EVIDENCE_VALUES, _MAX_EVIDENCE_LINES, _MAX_OTHER_INCIDENTS = 12, 8, 8
_MAX_EVIDENCE_CHARS, _MAX_NOTE_CHARS = 300, 500
_LINK_SAFE = ":/?#[]@!$&'()*+,;=%-._~"


@dataclass(config=ConfigDict(extra="forbid", hide_input_in_errors=True, str_strip_whitespace=True))
class Slack:
    """`url` is the incoming webhook's address.

    `link`, a web address, is put under each page; `{run}` and `{detector}` in it are filled in.
    """

    url: SecretStr
    link: str | None = None

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

    def render(self, notification: Notification, idempotency_key: str) -> Request:
        """The message. Slack knows no repeats, so people see `identity` and can tell one."""
        message = {
            "text": f"{_headline(notification)}. {_summary_text(notification)}",
            "blocks": self._blocks(notification, idempotency_key),
            "mrkdwn": False,
            "unfurl_links": False,
            "unfurl_media": False,
            "link_names": 0,
        }
        body = json.dumps(message).encode()
        return Request(self.url.get_secret_value(), body, {"Content-Type": "application/json"})

    def accepted(self, status: int, body: str) -> bool:
        """Slack says 200 and `ok`; a proxy's login page says 200 as well."""
        return status == 200 and body.strip() == "ok"

    def _blocks(self, notification: Notification, idempotency_key: str) -> list[dict[str, Any]]:
        known = (
            notification.diagnosis
            if notification.reason is not NotificationReason.RESOLVED
            else None
        )
        blocks = [
            {"type": "header", "text": {"type": "plain_text", "text": _headline(notification)}},
            _section(_summary_text(notification) if known is None else _diagnosis_text(known)),
            {"type": "section", "fields": [_markdown(text) for text in _fields(notification)]},
        ]
        if known is None and notification.incident.finding.evidence:
            blocks.append(_section(_evidence_values(notification.incident)))
        if notification.reason is not NotificationReason.RESOLVED and notification.remedy:
            blocks.append(
                _section(f"*What to do*\n{_escape(notification.remedy, _MAX_SENTENCE_CHARS)}")
            )
        if notification.others:
            blocks.append(_section(_other_incidents(notification)))
        if notification.notes:
            blocks.append(
                _section(
                    "\n".join(_escape(note, _MAX_NOTE_CHARS) for note in notification.notes[:2])
                )
            )
        return [
            *blocks,
            {"type": "context", "elements": self._context(notification, idempotency_key)},
        ]

    def _context(self, notification: Notification, idempotency_key: str) -> list[dict[str, Any]]:
        elements = [
            _markdown(f"{_escape(notification.name, _MAX_FIELD_CHARS)} · {idempotency_key[:8]}")
        ]
        if self.link:
            key = notification.incident.key
            link = self.link.replace("{run}", quote(key.run, safe=""))
            link = link.replace("{detector}", quote(key.detector, safe=""))
            elements.append(_markdown(f"<{quote(link, safe=_LINK_SAFE)}|Look closer>"))
        return elements


def _headline(notification: Notification) -> str:
    key, severity = notification.incident.key, notification.incident.severity
    subject = (
        f"{_escape(notification.subject, _MAX_TITLE_CHARS)} on {_escape(key.run, _MAX_NAME_CHARS)}"
    )
    if notification.reason is NotificationReason.RESOLVED:
        return f"{_RESOLVED_EMOJI} RESOLVED: {subject}"
    return f"{_SEVERITY_EMOJI[severity]} {_REASON_PREFIXES.get(notification.reason, '')}{severity.value.upper()}: {subject}"


def _summary_text(notification: Notification) -> str:
    summary = _escape(notification.trigger.finding.summary, _MAX_SENTENCE_CHARS)
    if notification.reason is NotificationReason.RESOLVED:
        return f"Over since step {notification.step}. It was: {summary}"
    if notification.diagnosis is None:
        return summary
    return f"{_capitalize(notification.diagnosis.confidence_text)}. {summary}"


def _diagnosis_text(diagnosis: Diagnosis) -> str:
    """How far the cause is believed in, and why, in the order it began."""
    clues = diagnosis.evidence
    lines = [
        f"• {_escape(clue.text_with_step, _MAX_EVIDENCE_CHARS)}"
        for clue in clues[:_MAX_EVIDENCE_LINES]
    ]
    if len(clues) > _MAX_EVIDENCE_LINES:
        lines.append(f"and {len(clues) - _MAX_EVIDENCE_LINES} more")
    return "\n".join([f"*{_capitalize(diagnosis.confidence_text)}*", *lines])


def _capitalize(text: str) -> str:
    return text[0].upper() + text[1:]


def _other_incidents(notification: Notification) -> str:
    lines = [
        f"• {_escape(each.key.detector, _MAX_WORD_CHARS)}, {each.severity.value}, since step {each.onset_step}"
        for each in notification.others[:_MAX_OTHER_INCIDENTS]
    ]
    if len(notification.others) > _MAX_OTHER_INCIDENTS:
        lines.append(f"and {len(notification.others) - _MAX_OTHER_INCIDENTS} more")
    return "*Told of here as well*\n" + "\n".join(lines)


def _fields(notification: Notification) -> list[str]:
    incident = notification.incident
    fields = {
        "Run": incident.key.run,
        "Step": str(notification.step),
        "Began at step": str(notification.onset_step),
        "Detector": incident.key.detector,
        "Signal": incident.signal,
        "Severity": incident.severity.value,
    }
    culprit = incident.finding.rank if incident.key.rank == WHOLE_RUN else incident.key.rank
    if culprit is not None:
        fields["Rank"] = str(culprit)
    if notification.last_good_step is not None:
        fields["Last checkpoint before"] = f"step {notification.last_good_step}"
    if incident.flaps:
        fields["Came back"] = f"{incident.flaps} times" if incident.flaps > 1 else "once"
    return [f"*{name}*\n{_escape(text, _MAX_FIELD_CHARS)}" for name, text in fields.items()]


def _evidence_values(incident: Incident) -> str:
    evidence = list(incident.finding.evidence.items())
    lines = [
        f"{_escape(name, _MAX_WORD_CHARS)} = {_format_value(value)}"
        for name, value in evidence[:_MAX_EVIDENCE_VALUES]
    ]
    if len(evidence) > _MAX_EVIDENCE_VALUES:
        lines.append(f"and {len(evidence) - _MAX_EVIDENCE_VALUES} more")
    return "*Evidence*\n" + "\n".join(lines)


def _format_value(value: float | str) -> str:
    return _escape(value, _MAX_NAME_CHARS) if isinstance(value, str) else f"{value:.6g}"


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": _markdown(text)}


def _markdown(text: str) -> dict[str, Any]:
    # Verbatim: Slack then makes no links and no mentions of what merely looks like one.
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _escape(text: str, limit: int) -> str:
    """`text` escaped, without control, hidden or direction-changing characters, cut to `limit`."""
    pieces: list[str] = []
    room = limit - 1
    for character in text:
        piece = _escape_character(character)
        room -= len(piece)
        if room < 0:
            return "".join(pieces) + "…"
        pieces.append(piece)
    return "".join(pieces)


def _escape_character(character: str) -> str:
    category = unicodedata.category(character)
    if character.isspace() or category.startswith("Z"):
        return " "
    return "" if category.startswith("C") else _ESCAPES.get(character, character)
