"""Spool: what a node's agent read and the head has not confirmed yet, in the agent's own database.

It is written in the transaction that stores how far the rings were read, so that a record is either
still in its ring or here. Its size is bounded: of a head that stays away too long, the oldest rows
are given up and counted, and the numbers of those that follow tell the head how many.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex

from sentinel.model.counters import Counters
from sentinel.model.record import Record
from sentinel.model.record_batch import RecordOrBatch, coalesce
from sentinel.transport.batch_codec import decode_standalone, encode_standalone

MAX_SPOOL_BYTES = 256 << 20
"""What may lie in it: some hours of eight ranks with ten steps a second."""
MAX_ROW_BYTES = 512 << 10
"""Of one row, about: an agent that was stopped reads whole rings at once, and no head would take
that in one piece."""


@dataclass
class Spool:
    """Rows of the table `spool`, numbered without a gap, through one open connection."""

    connection: sqlite3.Connection
    counters: Counters
    max_bytes: int = MAX_SPOOL_BYTES
    size_bytes: int = field(init=False)
    """What lies in it now."""
    spool_id: str = field(init=False)
    """Told apart by it from one that was lost: the numbers of its rows begin anew."""

    def __post_init__(self) -> None:
        query = "select coalesce(sum(length(records)), 0) from spool"
        (self.size_bytes,) = self.connection.execute(query).fetchone()
        self.connection.execute(
            "insert or ignore into cluster(key, value) values('spool', ?)", (token_hex(8),)
        )
        query = "select value from cluster where key = 'spool'"
        (self.spool_id,) = self.connection.execute(query).fetchone()

    def append(self, records: Sequence[Record]) -> None:
        """Keep these, those of each rank in their order, as one row, or as few as may be."""
        packed = encode_standalone(coalesce(records))
        if len(packed) > MAX_ROW_BYTES and len(records) > 1:
            half = len(records) // 2
            self.append(records[:half])
            self.append(records[half:])
            return
        self.connection.execute(
            "insert into spool(number, records) values(?, ?)", (len(records), packed)
        )
        self.size_bytes += len(packed)
        while self.size_bytes > self.max_bytes:
            self._drop_oldest()

    def read_after(
        self, row: int, run: str, max_bytes: int
    ) -> tuple[int, int, list[RecordOrBatch]]:
        """First and last row behind `row`, and what they hold: some bytes, but one row at least.

        The entries are of `run`. With no row the last is less than the first.
        """
        query = "select id, records from spool where id > ? order by id"
        found: list[RecordOrBatch] = []
        first, last, size = row + 1, row, 0
        for number, packed in self.connection.execute(query, (row,)):
            size += len(packed)
            if found and size > max_bytes:
                break
            first, last = (number if last < first else first), number
            found += decode_standalone(packed, run)
        return first, last, coalesce(found)

    @property
    def last_row(self) -> int:
        """Its newest row; 0 if it is empty."""
        (row,) = self.connection.execute("select coalesce(max(id), 0) from spool").fetchone()
        return int(row)

    def delete_through(self, row: int) -> None:
        """Drop everything up to that row: somebody else has it."""
        query = "select coalesce(sum(length(records)), 0) from spool where id <= ?"
        (gone,) = self.connection.execute(query, (row,)).fetchone()
        self.connection.execute("delete from spool where id <= ?", (row,))
        self.size_bytes -= gone

    def _drop_oldest(self) -> None:
        row, number, size = self.connection.execute(
            "select id, number, length(records) from spool order by id limit 1"
        ).fetchone()
        self.connection.execute("delete from spool where id = ?", (row,))
        self.size_bytes -= size
        self.counters.add("sentinel_dropped_records_total", "spool", number)
