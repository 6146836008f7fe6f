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
from sentinel.model.incident import Incident, Page, Reason
from sentinel.model.record import WHOLE_RUN
from sentinel.model.request import Post

_LIGHTS = {
    Severity.CRITICAL: ":red_circle:",
    Severity.WARNING: ":large_orange_circle:",
    Severity.INFO: ":large_blue_circle:",
}
_TURNS = {
    Reason.WORSENED: "WORSE, now ",
    Reason.JOINED: "More of it, still ",
    Reason.NAMED: "Cause found, still ",
}
_RESOLVED = ":white_check_mark:"
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "\uff20", "`": "\u02cb"}
_SENTENCE, _FIELD, _NAME, _TITLE, _WORD = 1500, 200, 60, 44, 40
_MOST_NUMBERS, _MOST_CLUES, _MOST_OTHERS = 12, 8, 8
_CLUE, _NOTE = 300, 500
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

    def word(self, page: Page, identity: str) -> Post:
        """The message. Slack knows no repeats, so people see `identity` and can tell one."""
        message = {
            "text": f"{_headline(page)}. {_sentence(page)}",
            "blocks": self._blocks(page, identity),
            "mrkdwn": False,
            "unfurl_links": False,
            "unfurl_media": False,
            "link_names": 0,
        }
        body = json.dumps(message).encode()
        return Post(self.url.get_secret_value(), body, {"Content-Type": "application/json"})

    def accepted(self, status: int, body: str) -> bool:
        """Slack says 200 and `ok`; a proxy's login page says 200 as well."""
        return status == 200 and body.strip() == "ok"

    def _blocks(self, page: Page, identity: str) -> list[dict[str, Any]]:
        known = page.diagnosis if page.reason is not Reason.RESOLVED else None
        blocks = [
            {"type": "header", "text": {"type": "plain_text", "text": _headline(page)}},
            _section(_sentence(page) if known is None else _reasons(known)),
            {"type": "section", "fields": [_markdown(text) for text in _fields(page)]},
        ]
        if known is None and page.incident.finding.evidence:
            blocks.append(_section(_numbers(page.incident)))
        if page.reason is not Reason.RESOLVED and page.remedy:
            blocks.append(_section(f"*What to do*\n{_safe(page.remedy, _SENTENCE)}"))
        if page.others:
            blocks.append(_section(_others(page)))
        if page.notes:
            blocks.append(_section("\n".join(_safe(note, _NOTE) for note in page.notes[:2])))
        return [*blocks, {"type": "context", "elements": self._context(page, identity)}]

    def _context(self, page: Page, identity: str) -> list[dict[str, Any]]:
        elements = [_markdown(f"{_safe(page.name, _FIELD)} · {identity[:8]}")]
        if self.link:
            key = page.incident.key
            link = self.link.replace("{run}", quote(key.run, safe=""))
            link = link.replace("{detector}", quote(key.detector, safe=""))
            elements.append(_markdown(f"<{quote(link, safe=_LINK_SAFE)}|Look closer>"))
        return elements


def _headline(page: Page) -> str:
    key, severity = page.incident.key, page.incident.severity
    subject = f"{_safe(page.subject, _TITLE)} on {_safe(key.run, _NAME)}"
    if page.reason is Reason.RESOLVED:
        return f"{_RESOLVED} RESOLVED: {subject}"
    return f"{_LIGHTS[severity]} {_TURNS.get(page.reason, '')}{severity.value.upper()}: {subject}"


def _sentence(page: Page) -> str:
    summary = _safe(page.news.finding.summary, _SENTENCE)
    if page.reason is Reason.RESOLVED:
        return f"Over since step {page.step}. It was: {summary}"
    if page.diagnosis is None:
        return summary
    return f"{_capital(page.diagnosis.belief)}. {summary}"


def _reasons(diagnosis: Diagnosis) -> str:
    """How far the cause is believed in, and why, in the order it began."""
    clues = diagnosis.evidence
    lines = [f"• {_safe(clue.dated, _CLUE)}" for clue in clues[:_MOST_CLUES]]
    if len(clues) > _MOST_CLUES:
        lines.append(f"and {len(clues) - _MOST_CLUES} more")
    return "\n".join([f"*{_capital(diagnosis.belief)}*", *lines])


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _others(page: Page) -> str:
    lines = [
        f"• {_safe(each.key.detector, _WORD)}, {each.severity.value}, since step {each.onset_step}"
        for each in page.others[:_MOST_OTHERS]
    ]
    if len(page.others) > _MOST_OTHERS:
        lines.append(f"and {len(page.others) - _MOST_OTHERS} more")
    return "*Told of here as well*\n" + "\n".join(lines)


def _fields(page: Page) -> list[str]:
    incident = page.incident
    fields = {
        "Run": incident.key.run,
        "Step": str(page.step),
        "Began at step": str(page.onset_step),
        "Detector": incident.key.detector,
        "Signal": incident.signal,
        "Severity": incident.severity.value,
    }
    culprit = incident.finding.rank if incident.key.rank == WHOLE_RUN else incident.key.rank
    if culprit is not None:
        fields["Rank"] = str(culprit)
    if page.last_good_step is not None:
        fields["Last checkpoint before"] = f"step {page.last_good_step}"
    if incident.flaps:
        fields["Came back"] = f"{incident.flaps} times" if incident.flaps > 1 else "once"
    return [f"*{name}*\n{_safe(text, _FIELD)}" for name, text in fields.items()]


def _numbers(incident: Incident) -> str:
    evidence = list(incident.finding.evidence.items())
    lines = [f"{_safe(name, _WORD)} = {_value(value)}" for name, value in evidence[:_MOST_NUMBERS]]
    if len(evidence) > _MOST_NUMBERS:
        lines.append(f"and {len(evidence) - _MOST_NUMBERS} more")
    return "*Evidence*\n" + "\n".join(lines)


def _value(value: float | str) -> str:
    return _safe(value, _NAME) if isinstance(value, str) else f"{value:.6g}"


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": _markdown(text)}


def _markdown(text: str) -> dict[str, Any]:
    # Verbatim: Slack then makes no links and no mentions of what merely looks like one.
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _safe(text: str, limit: int) -> str:
    """`text` escaped, without control, hidden or direction-changing characters, cut to `limit`."""
    pieces: list[str] = []
    room = limit - 1
    for character in text:
        piece = _piece(character)
        room -= len(piece)
        if room < 0:
            return "".join(pieces) + "…"
        pieces.append(piece)
    return "".join(pieces)


def _piece(character: str) -> str:
    category = unicodedata.category(character)
    if character.isspace() or category.startswith("Z"):
        return " "
    return "" if category.startswith("C") else _ESCAPES.get(character, character)
