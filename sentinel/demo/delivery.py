"""Delivery: one page as it came out of the webhook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a receiver of the webhook can read of one page.

    `step` is where the page was due, `onset_step` where its cause began. `seconds` passed between
    the record that led to the page and its arrival.
    """

    reason: str
    detector: str
    severity: str
    step: int
    onset_step: int
    summary: str
    remedy: str
    evidence: Mapping[str, float | str]
    seconds: float


def read(message: Mapping[str, Any], now: float) -> Delivery:
    """Read a webhook's message that came at `now`. Raises KeyError if it is not one of ours."""
    page = message["sentinel"]
    incident = page["incident"]
    finding = incident["finding"]
    return Delivery(
        reason=page["reason"],
        detector=incident["key"]["detector"],
        severity=incident["severity"],
        step=page["step"],
        onset_step=incident["onset_step"],
        summary=finding["summary"],
        remedy=incident["remedy"],
        evidence=finding["evidence"],
        seconds=now - page["time"],
    )
