"""Journal: the agent's input, kept until a snapshot of everything it led to has been stored.

An agent that was killed restores the snapshot, feeds itself the records journalled after it, and
reads each ring on from the stored position. All of it commits together with its consequences.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sentinel.model.record_batch import RecordOrBatch
from sentinel.transport.batch_codec import decode_standalone, encode_standalone
from sentinel.transport.ring import RingCursor
from sentinel.transport.ring_position import ReadPosition


@dataclass
class Journal:
    """Rows of the tables `ring`, `input` and `snapshot` through one open connection."""

    connection: sqlite3.Connection

    def append(self, entries: Sequence[RecordOrBatch]) -> None:
        """Keep these records of input, in their order."""
        if entries:
            self.connection.execute(
                "insert into input(records) values(?)", (encode_standalone(entries),)
            )

    def store_positions(self, positions: Mapping[str, ReadPosition]) -> None:
        """Store how far each ring has been read, by its path."""
        self.connection.executemany(
            "insert or replace into ring(path, position, sequence, names) values(?, ?, ?, ?)",
            [
                (path, p.cursor.position, p.cursor.sequence, _position_to_json(p))
                for path, p in positions.items()
            ],
        )

    def positions(self) -> dict[str, ReadPosition]:
        """Every stored position by ring path."""
        rows = self.connection.execute("select path, position, sequence, names from ring")
        return {
            path: _position_from_row(place, sequence, text) for path, place, sequence, text in rows
        }

    def store_snapshot(self, state: str) -> None:
        """Store the state everything so far led to; the journal behind it is no longer needed."""
        self.connection.execute(
            "insert or replace into snapshot(one, state) values(1, ?)", (state,)
        )
        self.connection.execute("delete from input")

    def load_snapshot(self) -> str | None:
        """The stored snapshot, if there is one."""
        row = self.connection.execute("select state from snapshot").fetchone()
        return None if row is None else str(row[0])

    def entries_since_snapshot(self, run: str) -> Iterator[RecordOrBatch]:
        """Input of that run that is newer than the snapshot, in order."""
        found = self.connection.execute("select records from input order by id").fetchall()
        for (packed,) in found:
            yield from decode_standalone(packed, run)


def _position_to_json(position: ReadPosition) -> str:
    return json.dumps([dict(position.reader_state), position.outcome, position.ended_at])


def _position_from_row(offset: int, sequence: int, position_json: str) -> ReadPosition:
    names, outcome, ended_at = json.loads(position_json)
    return ReadPosition(RingCursor(offset, sequence), names, outcome, ended_at)
