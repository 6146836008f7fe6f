"""Records that a follower has read and its head has not acknowledged, in the follower's database.

The spool is written in the transaction that stores the read positions of the rings, so a record is
either still in its ring or in the spool. Its size is limited: while the head is unreachable, the
oldest rows are dropped and counted, and the gap in the row numbers shows the head how many.
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
"""Size limit of a spool: some hours of eight ranks with ten steps a second."""
MAX_ROW_BYTES = 512 << 10
"""Approximate size limit of one row. An agent that was suspended reads whole rings at once, which
exceeds the size limit of a message."""


@dataclass
class Spool:
    """The rows of table `spool`, numbered without a gap."""

    connection: sqlite3.Connection
    counters: Counters
    max_bytes: int = MAX_SPOOL_BYTES
    size_bytes: int = field(init=False)
    """Size of all rows."""
    spool_id: str = field(init=False)
    """Distinguishes this spool from one that was lost, since its row numbers start again at 1."""

    def __post_init__(self) -> None:
        query = "select coalesce(sum(length(records)), 0) from spool"
        (self.size_bytes,) = self.connection.execute(query).fetchone()
        self.connection.execute(
            "insert or ignore into cluster(key, value) values('spool_id', ?)", (token_hex(8),)
        )
        query = "select value from cluster where key = 'spool_id'"
        (self.spool_id,) = self.connection.execute(query).fetchone()

    def append(self, records: Sequence[Record]) -> None:
        """Add these records, in order for each rank, as one row, or more if they are too large."""
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
        """First and last row after `row`, up to `max_bytes` but at least one, and their entries.

        The entries have `run` as their run. If there is no row, last is less than first.
        """
        query = "select id, records from spool where id > ? order by id"
        entries: list[RecordOrBatch] = []
        first, last, size = row + 1, row, 0
        for row_id, packed in self.connection.execute(query, (row,)):
            size += len(packed)
            if entries and size > max_bytes:
                break
            first, last = (row_id if last < first else first), row_id
            entries += decode_standalone(packed, run)
        return first, last, coalesce(entries)

    @property
    def last_row(self) -> int:
        """Number of the newest row; 0 if the spool is empty."""
        (row,) = self.connection.execute("select coalesce(max(id), 0) from spool").fetchone()
        return int(row)

    def delete_through(self, row: int) -> None:
        """Delete all rows up to and including `row`."""
        query = "select coalesce(sum(length(records)), 0) from spool where id <= ?"
        (deleted_bytes,) = self.connection.execute(query, (row,)).fetchone()
        self.connection.execute("delete from spool where id <= ?", (row,))
        self.size_bytes -= deleted_bytes

    def _drop_oldest(self) -> None:
        row, count, size = self.connection.execute(
            "select id, number, length(records) from spool order by id limit 1"
        ).fetchone()
        self.connection.execute("delete from spool where id = ?", (row,))
        self.size_bytes -= size
        self.counters.add("sentinel_dropped_records_total", "spool", count)
