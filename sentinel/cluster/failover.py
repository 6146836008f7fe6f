"""A follower that takes over the evaluation of its ranks, beginning with its spool."""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.cluster.spool import Spool
from sentinel.model.record import Event, Record
from sentinel.model.record_batch import RecordOrBatch

CHUNK_BYTES = 128 << 10
"""Bytes of the spool that one call of `drain` returns, at least one row."""


class Failover:
    """Returns the spooled records of `run` in their order, and then the records read since."""

    def __init__(self, run: str, spool: Spool) -> None:
        self.run, self.spool = run, spool
        self._drained_row = 0
        self._unspooled: list[Record] = []

    def drain(self, local_records: Iterable[Record]) -> list[RecordOrBatch]:
        """The records to evaluate now."""
        if not self.spool.size_bytes:
            return [*local_records]
        _, self._drained_row, entries = self.spool.read_after(
            self._drained_row, self.run, CHUNK_BYTES
        )
        if self._drained_row >= self.spool.last_row:
            # The spool is drained: new records follow directly.
            return [*entries, *local_records]
        # A heartbeat is outdated when the spool is drained.
        self._unspooled += [
            record for record in local_records if record.event is not Event.HEARTBEAT
        ]
        return entries

    @property
    def has_unread(self) -> bool:
        """Whether the next call returns more."""
        return bool(self.spool.size_bytes)

    @property
    def has_unsaved_changes(self) -> bool:
        """Whether the spool still holds records."""
        return bool(self.spool.size_bytes or self._unspooled)

    def persist(self) -> None:
        """Spool new records and delete drained rows, within the caller's transaction."""
        if self._unspooled:
            self.spool.append(self._unspooled)
            self._unspooled = []
        if self.spool.size_bytes:
            self.spool.delete_through(self._drained_row)
