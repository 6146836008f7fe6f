"""Journal: the agent's input, kept until a snapshot of everything it led to has been stored.

An agent that was killed restores the snapshot, feeds itself the records journalled after it, and
reads each ring on from the stored position. All of it commits together with its consequences.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sentinel.record import Event, Record
from sentinel.wire.position import Position
from sentinel.wire.ring import Cursor


@dataclass
class Journal:
    """Rows of the tables `ring`, `journal` and `snapshot` through one open connection."""

    connection: sqlite3.Connection

    def append(self, record: Record) -> None:
        """Keep one input record."""
        self.connection.execute("insert into journal(record) values(?)", (encode(record),))

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
        self.connection.execute("delete from journal")

    def state(self) -> str | None:
        """The stored snapshot, if there is one."""
        row = self.connection.execute("select state from snapshot").fetchone()
        return None if row is None else str(row[0])

    def since_snapshot(self) -> Iterator[Record]:
        """Input records newer than the snapshot, in order."""
        rows = self.connection.execute("select record from journal order by id").fetchall()
        for (text,) in rows:
            yield decode(text)


def encode(record: Record) -> str:
    """One record of a single rank, or a TICK, as JSON; spreads are never input."""
    return json.dumps(
        [
            record.run,
            record.rank,
            record.step,
            record.time,
            record.event.value,
            dict(record.values),
            dict(record.facts),
            record.attempt,
            record.beat,
        ]
    )


def decode(text: str) -> Record:
    """What `encode` wrote. Raises ValueError if it is damaged."""
    run, rank, step, time, event, values, facts, attempt, beat = json.loads(text)
    return Record(
        run=run,
        rank=rank,
        step=step,
        time=time,
        event=Event(event),
        values=values,
        facts=facts,
        attempt=attempt,
        beat=beat,
    )


def _remembered(position: Position) -> str:
    return json.dumps([dict(position.names), position.outcome, position.ended_at])


def _position(place: int, sequence: int, text: str) -> Position:
    names, outcome, ended_at = json.loads(text)
    return Position(Cursor(place, sequence), names, outcome, ended_at)
