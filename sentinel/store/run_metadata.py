"""Facts: what a run said of itself, kept so that runs can be told apart and compared later.

A row per key holds its newest value; a tap, which each rank tells of, has a row per rank. The view
`facts` is that of the run: key, value, and when it was last said.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass, field
from math import isnan

from sentinel.metrics.run_state import LONGEST_FACT, MOST_FACTS, MOST_TAPS, TAP
from sentinel.model.record import WHOLE_RUN, Event, Record

Key = tuple[str, int]
"""Name of the fact, and the rank that it is of."""

Told = str | float

NOT_FACTS = frozenset({"global_step"})
"""What travels with a record, and is no setting."""


@dataclass
class Facts:
    """Rows of the table `fact`, written in the caller's transaction.

    The first `MOST_FACTS` texts and numbers, and `MOST_TAPS` taps, are kept.
    """

    connection: sqlite3.Connection
    own: dict[Key, Told] = field(default_factory=dict)
    taps: dict[Key, Told] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = self.connection.execute("select key, rank, coalesce(text, number) from fact")
        for key, rank, told in rows:
            (self.own if rank == WHOLE_RUN else self.taps)[key, rank] = told

    def take(self, record: Record) -> bool:
        """Keep what a START or FACTS record says; whether any of it is news."""
        if record.event is Event.START and record.rank == WHOLE_RUN:
            self._begin_anew()
        shelf, most = self.taps, MOST_TAPS
        if record.rank == WHOLE_RUN:
            shelf, most = self.own, 2 * MOST_FACTS
        kept: list[tuple[Key, Told]] = []
        for key, told in _said(record).items():
            if shelf.get(key) != told and (key in shelf or len(shelf) < most):
                shelf[key] = told
                kept.append((key, told))
        self.connection.executemany(
            "insert or replace into fact values(?, ?, ?, ?, ?, ?, ?)",
            [_row(key, told, record) for key, told in kept],
        )
        return bool(kept)

    def about(self) -> dict[str, Told]:
        """The run's own facts by name; for any thread."""
        return {key: told for (key, _), told in self.own.copy().items()}

    def last(self, run: str) -> list[Record]:
        """All of it as records: the run's own, then one a rank of how its taps are."""
        facts: defaultdict[int, dict[str, str]] = defaultdict(dict)
        values: dict[str, float] = {}
        known = {**self.own, **self.taps}
        for (key, rank), told in known.items():
            if isinstance(told, str):
                facts[rank][key] = told
            else:
                values[key] = told
        attempt, step, time = self._newest()
        return [
            Record(
                run=run,
                rank=rank,
                step=step,
                time=time,
                event=Event.FACTS,
                values=values if rank == WHOLE_RUN else {},
                facts=facts[rank],
                attempt=attempt,
            )
            for rank in sorted({rank for _, rank in known})
        ]

    def _begin_anew(self) -> None:
        """A new attempt puts its own taps in."""
        self.connection.execute("delete from fact where rank <> ?", (WHOLE_RUN,))
        self.taps.clear()

    def _newest(self) -> tuple[int, int, float]:
        asked = "select attempt, step, time from fact order by time desc limit 1"
        row = self.connection.execute(asked).fetchone()
        return (0, 0, 0.0) if row is None else (int(row[0]), int(row[1]), float(row[2]))


def _said(record: Record) -> dict[Key, Told]:
    """The run's own facts from the record of the run; how a tap is from the record of its rank."""
    if record.event not in {Event.START, Event.FACTS}:
        return {}
    whole = record.rank == WHOLE_RUN
    texts = {
        (_storable(name), record.rank): _storable(text[:LONGEST_FACT])
        for name, text in record.facts.items()
        if name.startswith(TAP) != whole
    }
    # What is not a number could not be found equal to itself, and would be news for ever.
    numbers = {
        (_storable(name), WHOLE_RUN): number
        for name, number in record.values.items()
        if whole and name not in NOT_FACTS and not isnan(number)
    }
    return {**texts, **numbers}


def _storable(text: str) -> str:
    """A path that is no UTF-8 holds half characters, which no database takes for text."""
    return text.encode("utf-8", "backslashreplace").decode()


def _row(key: Key, told: Told, record: Record) -> tuple[object, ...]:
    text = told if isinstance(told, str) else None
    number = None if isinstance(told, str) else told
    return (*key, text, number, record.attempt, record.step, record.time)
