"""Facts: what a run said of itself, kept so that runs can be told apart and compared later.

A row per key holds its newest value; a tap, which each rank tells of, has a row per rank. The view
`facts` is that of the run: key, value, and when it was last said.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass, field
from math import isnan

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.signals.run_metadata import (
    MAX_METADATA_CHARS,
    MAX_METADATA_KEYS,
    MAX_PATCHES,
    PATCH_KEY_PREFIX,
)

MetadataKey = tuple[str, int]
"""Name of the fact, and the rank that it is of."""

MetadataValue = str | float

NON_METADATA_KEYS = frozenset({"global_step"})
"""What travels with a record, and is no setting."""


@dataclass
class RunMetadataStore:
    """Rows of the table `fact`, written in the caller's transaction.

    The first `MOST_FACTS` texts and numbers, and `MOST_TAPS` taps, are kept.
    """

    connection: sqlite3.Connection
    run_metadata: dict[MetadataKey, MetadataValue] = field(default_factory=dict)
    patch_states: dict[MetadataKey, MetadataValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = self.connection.execute("select key, rank, coalesce(text, number) from fact")
        for key, rank, told in rows:
            (self.run_metadata if rank == WHOLE_RUN else self.patch_states)[key, rank] = told

    def update(self, record: Record) -> bool:
        """Keep what a START or FACTS record says; whether any of it is news."""
        if record.event is Event.START and record.rank == WHOLE_RUN:
            self._delete_patch_states()
        shelf, most = self.patch_states, MAX_PATCHES
        if record.rank == WHOLE_RUN:
            shelf, most = self.run_metadata, 2 * MAX_METADATA_KEYS
        kept: list[tuple[MetadataKey, MetadataValue]] = []
        for key, told in _metadata_of_record(record).items():
            if shelf.get(key) != told and (key in shelf or len(shelf) < most):
                shelf[key] = told
                kept.append((key, told))
        self.connection.executemany(
            "insert or replace into fact values(?, ?, ?, ?, ?, ?, ?)",
            [_metadata_row(key, told, record) for key, told in kept],
        )
        return bool(kept)

    def as_dict(self) -> dict[str, MetadataValue]:
        """The run's own facts by name; for any thread."""
        return {key: told for (key, _), told in self.run_metadata.copy().items()}

    def to_records(self, run: str) -> list[Record]:
        """All of it as records: the run's own, then one a rank of how its taps are."""
        facts: defaultdict[int, dict[str, str]] = defaultdict(dict)
        values: dict[str, float] = {}
        known = {**self.run_metadata, **self.patch_states}
        for (key, rank), told in known.items():
            if isinstance(told, str):
                facts[rank][key] = told
            else:
                values[key] = told
        attempt, step, time = self._latest_position()
        return [
            Record(
                run=run,
                rank=rank,
                step=step,
                time=time,
                event=Event.METADATA,
                values=values if rank == WHOLE_RUN else {},
                attributes=facts[rank],
                attempt=attempt,
            )
            for rank in sorted({rank for _, rank in known})
        ]

    def _delete_patch_states(self) -> None:
        """A new attempt puts its own taps in."""
        self.connection.execute("delete from fact where rank <> ?", (WHOLE_RUN,))
        self.patch_states.clear()

    def _latest_position(self) -> tuple[int, int, float]:
        asked = "select attempt, step, time from fact order by time desc limit 1"
        row = self.connection.execute(asked).fetchone()
        return (0, 0, 0.0) if row is None else (int(row[0]), int(row[1]), float(row[2]))


def _metadata_of_record(record: Record) -> dict[MetadataKey, MetadataValue]:
    """The run's own facts from the record of the run; how a tap is from the record of its rank."""
    if record.event not in {Event.START, Event.METADATA}:
        return {}
    whole = record.rank == WHOLE_RUN
    texts = {
        (_escape_surrogates(name), record.rank): _escape_surrogates(text[:MAX_METADATA_CHARS])
        for name, text in record.attributes.items()
        if name.startswith(PATCH_KEY_PREFIX) != whole
    }
    # What is not a number could not be found equal to itself, and would be news for ever.
    numbers = {
        (_escape_surrogates(name), WHOLE_RUN): number
        for name, number in record.values.items()
        if whole and name not in NON_METADATA_KEYS and not isnan(number)
    }
    return {**texts, **numbers}


def _escape_surrogates(text: str) -> str:
    """A path that is no UTF-8 holds half characters, which no database takes for text."""
    return text.encode("utf-8", "backslashreplace").decode()


def _metadata_row(key: MetadataKey, value: MetadataValue, record: Record) -> tuple[object, ...]:
    text = value if isinstance(value, str) else None
    number = None if isinstance(value, str) else value
    return (*key, text, number, record.attempt, record.step, record.time)
