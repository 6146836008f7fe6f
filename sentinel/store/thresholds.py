"""The thresholds of detectors over time, which the charts show beside their signals."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any

from sentinel.model.record import Record

if TYPE_CHECKING:
    from sentinel.pipeline.engine import Threshold

MIN_CHANGE = 0.01
"""Relative change from which on a threshold is stored again."""
MAX_ROWS_PER_DETECTOR = 2000
"""Rows above which every second one of the older half is deleted."""

_THIN_SQL = """
delete from threshold where id in (
    select id from (
        select id, row_number() over (order by id) as number from threshold
        where detector = ?1 order by id limit ?2)
    where number % 2 = 0)
"""


@dataclass
class ThresholdStore:
    """Rows of the table `threshold`, in the caller's transaction.

    Make a new one after a rollback.
    """

    connection: sqlite3.Connection
    max_rows: int = MAX_ROWS_PER_DETECTOR
    _counts: dict[str, int] = field(default_factory=dict)

    @cached_property
    def _latest(self) -> dict[tuple[str, str], tuple[int, float]]:
        """Attempt and value of the newest row by detector and signal."""
        rows = self.connection.execute(
            "select detector, signal, attempt, value from threshold order by id"
        ).fetchall()
        for detector, *_ in rows:
            self._counts[detector] = self._counts.get(detector, 0) + 1
        return {(detector, signal): (attempt, value) for detector, signal, attempt, value in rows}

    def update(self, record: Record, thresholds: Mapping[str, Threshold]) -> None:
        """Store the thresholds that the detectors stated at the record, if they changed."""
        for detector, (signal, value) in thresholds.items():
            if not isfinite(value):
                continue
            before = self._latest.get((detector, signal), (-1, value))
            is_same_attempt = before[0] == record.attempt
            if is_same_attempt and abs(value - before[1]) <= MIN_CHANGE * abs(before[1]):
                continue
            self._latest[detector, signal] = record.attempt, value
            self._insert(detector, signal, record, value)

    def delete_since(self, time: float) -> None:
        """Delete the rows from that time on (epoch seconds)."""
        self.connection.execute("delete from threshold where time >= ?", [time])
        self._counts.clear()
        self.__dict__.pop("_latest", None)

    def _insert(self, detector: str, signal: str, record: Record, value: float) -> None:
        self.connection.execute(
            "insert into threshold(detector, signal, attempt, step, time, value)"
            " values(?, ?, ?, ?, ?, ?)",
            (detector, signal, record.attempt, record.step, record.time, value),
        )
        self._counts[detector] = count = self._counts.get(detector, 0) + 1
        if count > self.max_rows:
            deleted = self.connection.execute(_THIN_SQL, (detector, count // 2)).rowcount
            self._counts[detector] -= deleted


def read_thresholds(
    connection: sqlite3.Connection, signals: set[str]
) -> dict[str, dict[str, list[tuple[Any, ...]]]]:
    """Step, time, attempt and value of each stored threshold, by signal, then by detector."""
    found: dict[str, dict[str, list[tuple[Any, ...]]]] = {}
    rows = connection.execute(
        "select signal, detector, step, time, attempt, value from threshold order by id"
    )
    for signal, detector, *row in rows:
        if signal in signals:
            found.setdefault(signal, {}).setdefault(detector, []).append(tuple(row))
    return found
