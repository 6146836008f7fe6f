"""Delivery: one page as it came out of the webhook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ReceivedNotification:
    """What a receiver of the webhook can read of one page.

    `step` is where the page was due, `onset_step` where the incident that leads its `case` began.
    `seconds` passed between the record that led to the page and its arrival. `cause` and what
    follows tell what is behind it, where that has a name: `clues` in the order they began.
    """

    reason: str
    case: str
    detector: str
    severity: str
    step: int
    onset_step: int
    summary: str
    remedy: str
    evidence: Mapping[str, float | str]
    seconds: float
    others: tuple[str, ...] = ()
    cause: str = ""
    title: str = ""
    belief: str = ""
    cause_evidence: tuple[str, ...] = ()
    last_good_step: int | None = None


def parse_notification(message: Mapping[str, Any], received_time: float) -> ReceivedNotification:
    """Read a webhook's message that came at `now`. Raises KeyError if it is not one of ours."""
    page = message["sentinel"]
    incident = page["incident"]
    finding = incident["finding"]
    known = page["diagnosis"] or {}
    return ReceivedNotification(
        reason=page["reason"],
        case=page["incident_name"],
        detector=incident["key"]["detector"],
        severity=incident["severity"],
        step=page["step"],
        onset_step=incident["onset_step"],
        summary=finding["summary"],
        remedy=known.get("remedy", incident["remedy"]),
        evidence=finding["evidence"],
        seconds=received_time - page["time"],
        others=tuple(dict.fromkeys(other["detector"] for other in page["others"])),
        cause=known.get("cause", ""),
        title=known.get("title", ""),
        belief=known.get("belief", ""),
        cause_evidence=tuple(format_evidence(clue) for clue in known.get("evidence", ())),
        last_good_step=known.get("last_good_step", incident["last_good_step"]),
    )


def format_evidence(evidence: Mapping[str, Any]) -> str:
    """A piece of evidence, and since when."""
    since = "" if evidence["step"] is None else f"since step {evidence['step']}: "
    return f"{since}{evidence['text']}"
