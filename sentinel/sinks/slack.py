"""Slack: one notification as one Block Kit message of an incoming webhook.

Names and texts of people and models are untrusted. They are escaped and cleaned, so that they
contain no mention, no link and no hidden character. The message stays within the limits of Slack:
150 characters in a header, 3,000 in a section, 10 fields, 50 blocks, about 13,000 characters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import quote

from pydantic import ConfigDict, SecretStr, field_validator
from pydantic.dataclasses import dataclass

from sentinel.config.url_policy import url_refusal
from sentinel.model.delivery import HttpRequest, Response
from sentinel.model.diagnosis import Diagnosis
from sentinel.model.finding import Severity
from sentinel.model.incident import Incident
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.notification_text import clean, headline
from sentinel.model.record import WHOLE_RUN

_SEVERITY_EMOJI = {
    Severity.CRITICAL: ":red_circle:",
    Severity.WARNING: ":large_orange_circle:",
    Severity.INFO: ":large_blue_circle:",
}
_RESOLVED_EMOJI = ":white_check_mark:"
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "\uff20", "`": "\u02cb"}
_MAX_HEADLINE_CHARS = 125
_MAX_SENTENCE_CHARS = 1500
_MAX_FIELD_CHARS = 200
_MAX_VALUE_CHARS = 60
_MAX_NAME_CHARS = 40
_MAX_EVIDENCE_CHARS = 300
_MAX_NOTE_CHARS = 500
_MAX_EVIDENCE_VALUES, _MAX_EVIDENCE_LINES, _MAX_OTHER_INCIDENTS, _MAX_NOTES = 12, 8, 8, 3
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
        run = _escape(notification.incident.key.run, _MAX_VALUE_CHARS)
        message = {
            "text": f"{_headline(notification)}. Run {run}.",
            "blocks": self._blocks(notification, delivery_id),
            "mrkdwn": False,
            "unfurl_links": False,
            "unfurl_media": False,
            "link_names": 0,
        }
        body = json.dumps(message).encode()
        return HttpRequest(self.url.get_secret_value(), body, {"Content-Type": "application/json"})

    def is_accepted(self, response: Response) -> bool:
        """Slack responds 200 and `ok`; the login page of a proxy has status 200 as well."""
        return response.status == 200 and response.body.strip() == "ok"

    def receipt(self, response: Response) -> None:
        """None: a message of an incoming webhook has no identifier."""
        del response

    def _blocks(self, notification: Notification, delivery_id: str) -> list[dict[str, Any]]:
        is_resolved = notification.reason is NotificationReason.RESOLVED
        title = _headline(notification)
        blocks: list[dict[str, Any]] = [
            {"type": "header", "text": {"type": "plain_text", "text": title}}
        ]
        if text := _description(notification, title):
            blocks.append(_section(text))
        blocks.append(
            {"type": "section", "fields": [_markdown(text) for text in _fields(notification)]}
        )
        evidence = notification.incident.finding.evidence
        if evidence and notification.diagnosis is None and not is_resolved:
            blocks.append(_section(_evidence_values(evidence)))
        if notification.remedy and not is_resolved:
            remedy = _escape(notification.remedy, _MAX_SENTENCE_CHARS)
            blocks.append(_section(f"*What to do*\n{remedy}"))
        if notification.others:
            blocks.append(_section(_other_incidents(notification.others)))
        if notification.notes:
            notes = [_escape(note, _MAX_NOTE_CHARS) for note in notification.notes[:_MAX_NOTES]]
            blocks.append(_section("\n".join(notes)))
        return [*blocks, {"type": "context", "elements": self._context(notification, delivery_id)}]

    def _context(self, notification: Notification, delivery_id: str) -> list[dict[str, Any]]:
        name = _escape(notification.name, _MAX_FIELD_CHARS)
        elements = [_markdown(f"{name} · {delivery_id[:8]}")]
        if self.link:
            key = notification.incident.key
            link = self.link.replace("{run}", quote(key.run, safe=""))
            link = link.replace("{detector}", quote(key.detector, safe=""))
            elements.append(_markdown(f"<{quote(link, safe=_LINK_SAFE)}|Details>"))
        return elements


def _headline(notification: Notification) -> str:
    emoji = _SEVERITY_EMOJI[notification.incident.severity]
    if notification.reason is NotificationReason.RESOLVED:
        emoji = _RESOLVED_EMOJI
    return f"{emoji} {headline(notification, _MAX_HEADLINE_CHARS, _ESCAPES)}"


def _description(notification: Notification, title: str) -> str:
    """The text below the headline; empty if the headline contains all of it."""
    summary = _escape(notification.incident.finding.summary, _MAX_SENTENCE_CHARS)
    if notification.reason is NotificationReason.RESOLVED:
        return f"It was: {summary}"
    if notification.diagnosis is not None:
        return _diagnosis_text(notification.diagnosis)
    return "" if summary.rstrip(".") in title else summary


def _diagnosis_text(diagnosis: Diagnosis) -> str:
    """The cause and the evidence for it, in the order in which it began."""
    title = _escape(diagnosis.title, _MAX_VALUE_CHARS)
    lines = [
        f"*Cause: {title} ({diagnosis.confidence_text})*",
        *(
            f"• {_escape(evidence.text_with_step, _MAX_EVIDENCE_CHARS)}"
            for evidence in diagnosis.evidence[:_MAX_EVIDENCE_LINES]
        ),
        *_rest(len(diagnosis.evidence), _MAX_EVIDENCE_LINES),
    ]
    return "\n".join(lines)


def _other_incidents(incidents: Sequence[Incident]) -> str:
    lines = [
        f"• {_escape(each.key.detector, _MAX_NAME_CHARS)}, {each.severity.value},"
        f" since step {each.onset_step}"
        for each in incidents[:_MAX_OTHER_INCIDENTS]
    ]
    lines += _rest(len(incidents), _MAX_OTHER_INCIDENTS)
    return "\n".join(["*Also in this case*", *lines])


def _fields(notification: Notification) -> list[str]:
    incident = notification.incident
    fields = {
        "Run": incident.key.run,
        "Step": str(notification.step),
        "Since step": str(notification.onset_step),
        "Detector": incident.key.detector,
        "Signal": incident.signal,
        "Severity": incident.severity.value,
    }
    rank = incident.finding.rank if incident.key.rank == WHOLE_RUN else incident.key.rank
    if rank is not None:
        fields["Rank"] = str(rank)
    if notification.last_good_step is not None:
        fields["Last checkpoint before"] = f"step {notification.last_good_step}"
    if incident.flaps:
        fields["Recurred"] = f"{incident.flaps} times" if incident.flaps > 1 else "once"
    return [f"*{name}*\n{_escape(text, _MAX_FIELD_CHARS)}" for name, text in fields.items()]


def _evidence_values(evidence: Mapping[str, float | str]) -> str:
    values = [(name, value) for name, value in evidence.items() if value != ""]
    lines = [
        f"{_escape(name, _MAX_NAME_CHARS)} = {_format_value(value)}"
        for name, value in values[:_MAX_EVIDENCE_VALUES]
    ]
    return "\n".join(["*Evidence*", *lines, *_rest(len(values), _MAX_EVIDENCE_VALUES)])


def _rest(count: int, shown: int) -> list[str]:
    return [f"and {count - shown} more"] if count > shown else []


def _format_value(value: float | str) -> str:
    return _escape(value, _MAX_VALUE_CHARS) if isinstance(value, str) else f"{value:.6g}"


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": _markdown(text)}


def _markdown(text: str) -> dict[str, Any]:
    # With `verbatim`, Slack turns no text into links or mentions.
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _escape(text: str, max_chars: int) -> str:
    return clean(text, max_chars, _ESCAPES)
