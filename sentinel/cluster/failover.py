"""Heir: a post that is to judge after all, and first of all what it had kept for a head."""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.cluster.spool import Spool
from sentinel.model.record import Event, Record
from sentinel.model.record_batch import Entry

CHUNK_BYTES = 4 << 20
"""Of what was spooled, that is judged in one turn."""


class Heir:
    """Gives the records of `run` in the spool in their order, and then what is read."""

    def __init__(self, run: str, spool: Spool) -> None:
        self.run, self.spool = run, spool
        self._row = 0
        self._new: list[Record] = []

    def turn(self, local: Iterable[Record]) -> list[Entry]:
        """What is to be judged now."""
        if not self.spool.bytes:
            return [*local]
        _, self._row, entries = self.spool.after(self._row, self.run, CHUNK_BYTES)
        if self._row >= self.spool.last:
            # That was all of it: what is read now comes right behind.
            return [*entries, *local]
        # How the ranks were then, nobody needs to know.
        self._new += [record for record in local if record.event is not Event.TICK]
        return entries

    @property
    def due(self) -> bool:
        """Whether anything of the spool is left."""
        return bool(self.spool.bytes or self._new)

    def keep(self) -> None:
        """Store what has to wait, and forget what was judged, within the caller's transaction."""
        if self._new:
            self.spool.put(self._new)
            self._new = []
        if self.spool.bytes:
            self.spool.forget(self._row)
