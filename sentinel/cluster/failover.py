"""Heir: a post that is to judge after all, and first of all what it had kept for a head."""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.cluster.spool import Spool
from sentinel.model.record import Event, Record
from sentinel.model.record_batch import RecordOrBatch

CHUNK_BYTES = 4 << 20
"""Of what was spooled, that is judged in one turn."""


class Failover:
    """Gives the records of `run` in the spool in their order, and then what is read."""

    def __init__(self, run: str, spool: Spool) -> None:
        self.run, self.spool = run, spool
        self._drained_row = 0
        self._unspooled: list[Record] = []

    def drain(self, local_records: Iterable[Record]) -> list[RecordOrBatch]:
        """What is to be judged now."""
        if not self.spool.size_bytes:
            return [*local_records]
        _, self._drained_row, entries = self.spool.read_after(
            self._drained_row, self.run, CHUNK_BYTES
        )
        if self._drained_row >= self.spool.last_row:
            # That was all of it: what is read now comes right behind.
            return [*entries, *local_records]
        # How the ranks were then, nobody needs to know.
        self._unspooled += [
            record for record in local_records if record.event is not Event.HEARTBEAT
        ]
        return entries

    @property
    def has_unsaved_changes(self) -> bool:
        """Whether anything of the spool is left."""
        return bool(self.spool.size_bytes or self._unspooled)

    def persist(self) -> None:
        """Store what has to wait, and forget what was judged, within the caller's transaction."""
        if self._unspooled:
            self.spool.append(self._unspooled)
            self._unspooled = []
        if self.spool.size_bytes:
            self.spool.delete_through(self._drained_row)
