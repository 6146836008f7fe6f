"""Receivers that do not accept notifications, and what to do about it."""

from __future__ import annotations

from typing import Any, NamedTuple

from sentinel.model.quantity_text import format_time

MIN_WAITING_SECONDS = 60.0
"""A notification that waits for less time is no problem yet."""


class DeliveryProblem(NamedTuple):
    """A sink whose receiver does not accept notifications.

    `given_up` notifications were rejected for good since the last one that it accepted, and
    `waiting` ones were tried and will be tried again. `last_error` is a status or the name of an
    error class. `since` is the time of the first of them, in epoch seconds.
    """

    sink: str
    given_up: int
    waiting: int
    last_error: str
    since: float

    def is_reported(self, now: float) -> bool:
        """Whether people should know of it."""
        return bool(self.given_up) or now - self.since >= MIN_WAITING_SECONDS

    @property
    def text(self) -> str:
        """What is not delivered, since when and why.

        >>> DeliveryProblem("slack", 0, 2, "HTTP 503", 1_700_000_000.0).text
        'Sink slack fails since 2023-11-14 22:13:20 UTC (HTTP 503): 2 notifications waiting.'
        """
        counts = []
        if self.given_up:
            counts.append(
                f"{self.given_up} notification{'s' if self.given_up > 1 else ''} rejected"
            )
        if self.waiting:
            noun = "" if counts else f" notification{'s' if self.waiting > 1 else ''}"
            counts.append(f"{self.waiting}{noun} waiting")
        error = f" ({self.last_error})" if self.last_error else ""
        return (
            f"Sink {self.sink} fails since {format_time(self.since)}{error}: {', '.join(counts)}."
        )

    @property
    def remedy(self) -> str:
        """What to do about it."""
        test = f"test it with `sentinel notify test --sink {self.sink}`"
        return (
            f"Correct its settings, restart the agent, and {test}."
            if self.given_up
            else (f"Check that its receiver is up, and {test}.")
        )

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON."""
        return self._asdict() | {"text": self.text, "remedy": self.remedy}
