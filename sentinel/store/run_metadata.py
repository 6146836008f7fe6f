"""The metadata of a run: its configuration, environment and the state of its patches.

The table `metadata` holds the newest value of each key; the state of a patch has a row per rank.
The view `run_metadata` shows the keys of the run with their value and the time of the last change.
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
"""Name and rank."""

MetadataValue = str | float

NON_METADATA_KEYS = frozenset({"global_step"})
"""Values of records that are no metadata."""


@dataclass
class RunMetadataStore:
    """Rows of the table `metadata`, written in the caller's transaction.

    Stores the first `MAX_METADATA_KEYS` texts, as many numbers, and `MAX_PATCHES` patch states.
    """

    connection: sqlite3.Connection
    run_metadata: dict[MetadataKey, MetadataValue] = field(default_factory=dict)
    patch_states: dict[MetadataKey, MetadataValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = self.connection.execute("select key, rank, coalesce(text, number) from metadata")
        for key, rank, value in rows:
            (self.run_metadata if rank == WHOLE_RUN else self.patch_states)[key, rank] = value

    def update(self, record: Record) -> bool:
        """Store the metadata of a START or METADATA record; return whether any of it changed."""
        if record.event is Event.START and record.rank == WHOLE_RUN:
            self._delete_patch_states()
        stored, max_keys = self.patch_states, MAX_PATCHES
        if record.rank == WHOLE_RUN:
            stored, max_keys = self.run_metadata, 2 * MAX_METADATA_KEYS
        changed: dict[MetadataKey, MetadataValue] = {}
        for key, value in _metadata_of_record(record).items():
            if stored.get(key) != value and (key in stored or len(stored) < max_keys):
                stored[key] = changed[key] = value
        if not changed:
            return False
        self.connection.executemany(
            "insert or replace into metadata values(?, ?, ?, ?, ?, ?, ?)",
            [_metadata_row(key, value, record) for key, value in changed.items()],
        )
        return True

    def as_dict(self) -> dict[str, MetadataValue]:
        """The metadata of the run by name; callable from any thread."""
        return {key: value for (key, _), value in self.run_metadata.copy().items()}

    def to_records(self, run: str) -> list[Record]:
        """All metadata as records: one of the run, then one of each rank with its patch states."""
        attributes: defaultdict[int, dict[str, str]] = defaultdict(dict)
        values: dict[str, float] = {}
        stored = {**self.run_metadata, **self.patch_states}
        for (key, rank), value in stored.items():
            if isinstance(value, str):
                attributes[rank][key] = value
            else:
                values[key] = value
        attempt, step, time = self._latest_position()
        return [
            Record(
                run=run,
                rank=rank,
                step=step,
                time=time,
                event=Event.METADATA,
                values=values if rank == WHOLE_RUN else {},
                attributes=attributes[rank],
                attempt=attempt,
            )
            for rank in sorted({rank for _, rank in stored})
        ]

    def _delete_patch_states(self) -> None:
        """Delete the patch states of the last attempt."""
        self.connection.execute("delete from metadata where rank <> ?", (WHOLE_RUN,))
        self.patch_states.clear()

    def _latest_position(self) -> tuple[int, int, float]:
        query = "select attempt, step, time from metadata order by time desc limit 1"
        row = self.connection.execute(query).fetchone()
        return (0, 0, 0.0) if row is None else (int(row[0]), int(row[1]), float(row[2]))


def _metadata_of_record(record: Record) -> dict[MetadataKey, MetadataValue]:
    """The metadata of the run in its record, or the patch states in the record of a rank."""
    if record.event not in {Event.START, Event.METADATA}:
        return {}
    is_run_record = record.rank == WHOLE_RUN
    texts = {
        (_escape_surrogates(name), record.rank): _escape_surrogates(text[:MAX_METADATA_CHARS])
        for name, text in record.attributes.items()
        if name.startswith(PATCH_KEY_PREFIX) != is_run_record
    }
    # NaN does not equal itself, and would count as a change every time.
    numbers = {
        (_escape_surrogates(name), WHOLE_RUN): number
        for name, number in record.values.items()
        if is_run_record and name not in NON_METADATA_KEYS and not isnan(number)
    }
    return {**texts, **numbers}


def _escape_surrogates(text: str) -> str:
    """Replace surrogates, as in paths that are not UTF-8: SQLite does not accept them in text."""
    return text.encode("utf-8", "backslashreplace").decode()


def _metadata_row(key: MetadataKey, value: MetadataValue, record: Record) -> tuple[object, ...]:
    text = value if isinstance(value, str) else None
    number = None if isinstance(value, str) else value
    return (*key, text, number, record.attempt, record.step, record.time)
