"""Moment: one step, or evaluation, while ranks may still speak of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from sentinel.combine import Said
from sentinel.dialect import Dialect
from sentinel.record import Record


@dataclass(slots=True)
class Moment:
    """One step, or evaluation, still open: what each rank said of it, and when, in seconds."""

    first_heard: float
    last_heard: float
    said: dict[int, Said] = field(default_factory=dict)

    def hear(self, record: Record, now: float, spoken: Dialect) -> None:
        """One more word of one rank, in that dialect."""
        self.last_heard = now
        self.said.setdefault(record.rank, Said(record)).add(record, spoken)
