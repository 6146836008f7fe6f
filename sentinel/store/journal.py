"""The journal: the agent's input since the last snapshot of its state.

An agent that was killed restores the snapshot, processes the journal again, and continues reading
each ring at the stored position. Input, results and positions are committed in one transaction.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sentinel.model.record_batch import RecordOrBatch
from sentinel.transport.batch_codec import decode_standalone, encode_standalone
from sentinel.transport.ring import ReadPosition, RingCursor

MIN_JOURNAL_BYTES, MAX_JOURNAL_BYTES = 2 << 20, 64 << 20
JOURNAL_PER_SNAPSHOT = 8
"""Size of the journal at which a snapshot is made: so many times that of the last one, within the
limits. A snapshot of many ranks that wait takes longer than their step."""


@dataclass
class Journal:
    """Rows of the tables `ring`, `journal` and `snapshot`, in the caller's transaction.

    `size` is about the bytes that were appended since the last snapshot, and `snapshot_size` the
    characters of that.
    """

    connection: sqlite3.Connection
    size: int = 0
    snapshot_size: int = 0
    _position_texts: dict[str, tuple[list[Any], str]] = field(default_factory=dict)
    """By path what was last stored beside the cursor, and its JSON: it seldom changes."""

    def append(self, entries: Sequence[RecordOrBatch]) -> None:
        """Append these entries in order."""
        if entries:
            packed = encode_standalone(entries)
            self.connection.execute("insert into journal(records) values(?)", (packed,))
            self.size += len(packed)

    def store_positions(self, positions: Mapping[str, ReadPosition]) -> None:
        """Store how far each ring is read, by its path."""
        self.connection.executemany(
            "insert or replace into ring(path, position, sequence, names) values(?, ?, ?, ?)",
            [
                (
                    _storable(path),
                    each.cursor.position,
                    each.cursor.sequence,
                    self._position_to_json(path, each),
                )
                for path, each in positions.items()
            ],
        )

    def _position_to_json(self, path: str, position: ReadPosition) -> str:
        # A copy, since the names of a ring are added to.
        fields: list[Any] = [
            dict(position.reader_state),
            position.outcome,
            position.ended_at,
            dict(position.end_attributes),
        ]
        known = self._position_texts.get(path)
        if known is None or known[0] != fields:
            known = self._position_texts[path] = fields, json.dumps(fields)
        return known[1]

    def positions(self) -> dict[str, ReadPosition]:
        """Every stored position by the path of its ring."""
        rows = self.connection.execute("select path, position, sequence, names from ring")
        return {
            os.fsdecode(path): _position_from_row(offset, sequence, text)
            for path, offset, sequence, text in rows
        }

    def store_snapshot(self, state: str) -> None:
        """Store the state after all input so far, and delete the journal, which it replaces."""
        self.connection.execute("insert or replace into snapshot(id, state) values(1, ?)", (state,))
        self.connection.execute("delete from journal")
        self.size, self.snapshot_size = 0, len(state)

    @property
    def is_long(self) -> bool:
        """Whether it is time for a snapshot, which a larger state has after more input."""
        wanted = max(MIN_JOURNAL_BYTES, JOURNAL_PER_SNAPSHOT * self.snapshot_size)
        return self.size >= min(wanted, MAX_JOURNAL_BYTES)

    def load_snapshot(self) -> str | None:
        """The stored snapshot, if there is one."""
        row = self.connection.execute("select state from snapshot").fetchone()
        return None if row is None else str(row[0])

    def entries_since_snapshot(self, run: str) -> Iterator[RecordOrBatch]:
        """The input of the run since the snapshot, in order."""
        rows = self.connection.execute("select records from journal order by id").fetchall()
        for (packed,) in rows:
            yield from decode_standalone(packed, run)


def _storable(path: str) -> str | bytes:
    """The path, in bytes if they are no UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return os.fsencode(path)
    return path


def _position_from_row(offset: int, sequence: int, position_json: str) -> ReadPosition:
    # A position of an earlier version has no attributes of the end.
    reader_state, *end = json.loads(position_json)
    return ReadPosition(RingCursor(offset, sequence), reader_state, *end)
