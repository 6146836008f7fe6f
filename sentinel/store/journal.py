"""Journal: the agent's input, kept until a snapshot of everything it led to has been stored.

An agent that was killed restores the snapshot, feeds itself the records journalled after it, and
reads each ring on from the stored position. All of it commits together with its consequences.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sentinel.model.record_batch import Entry
from sentinel.transport.batch_codec import alone, rows
from sentinel.transport.ring import Cursor
from sentinel.transport.ring_position import Position


@dataclass
class Journal:
    """Rows of the tables `ring`, `input` and `snapshot` through one open connection."""

    connection: sqlite3.Connection

    def keep(self, records: Sequence[Entry]) -> None:
        """Keep these records of input, in their order."""
        if records:
            self.connection.execute("insert into input(records) values(?)", (alone(records),))

    def place(self, positions: Mapping[str, Position]) -> None:
        """Store how far each ring has been read, by its path."""
        self.connection.executemany(
            "insert or replace into ring(path, position, sequence, names) values(?, ?, ?, ?)",
            [
                (path, p.cursor.position, p.cursor.sequence, _remembered(p))
                for path, p in positions.items()
            ],
        )

    def positions(self) -> dict[str, Position]:
        """Every stored position by ring path."""
        rows = self.connection.execute("select path, position, sequence, names from ring")
        return {path: _position(place, sequence, text) for path, place, sequence, text in rows}

    def snapshot(self, state: str) -> None:
        """Store the state everything so far led to; the journal behind it is no longer needed."""
        self.connection.execute(
            "insert or replace into snapshot(one, state) values(1, ?)", (state,)
        )
        self.connection.execute("delete from input")

    def state(self) -> str | None:
        """The stored snapshot, if there is one."""
        row = self.connection.execute("select state from snapshot").fetchone()
        return None if row is None else str(row[0])

    def since_snapshot(self, run: str) -> Iterator[Entry]:
        """Input of that run that is newer than the snapshot, in order."""
        found = self.connection.execute("select records from input order by id").fetchall()
        for (packed,) in found:
            yield from rows(packed, run)


def _remembered(position: Position) -> str:
    return json.dumps([dict(position.names), position.outcome, position.ended_at])


def _position(place: int, sequence: int, text: str) -> Position:
    names, outcome, ended_at = json.loads(text)
    return Position(Cursor(place, sequence), names, outcome, ended_at)
