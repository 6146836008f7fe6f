"""Reading: the records of one log, how much of it could not be read, and how far it was read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sentinel.model.record import Record


@dataclass
class LogReader:
    """Iterate it for the records, in the order of the file; `skipped` is known afterwards.

    `skipped` counts lines or rows that hold no record: not JSON, too long, or without a number.
    `remark` says what a person should know of the choice that was made in reading; mostly nothing.
    `mark` says, of the record last given, how far into the log it reaches: it only grows, and is
    the same whenever that log is read. `held` is what `mark` will grow by when the rows are given
    that were read, and may not be whole. `clock` gives seconds since the epoch.
    """

    iterate_records: Callable[[LogReader], Iterator[Record | None]]
    skipped: int = 0
    position: int = 0
    pending_count: int = 0
    is_live: bool = False
    clock: Callable[[], float] = time.time
    notice: str = ""

    def __iter__(self) -> Iterator[Record]:
        self.skipped = self.position = self.pending_count = 0
        self.is_live = False
        return (record for record in self.iterate_records(self) if record is not None)

    def follow(self) -> Iterator[Record | None]:
        """The records, then those that come; None wherever there is no more for now.

        It never ends by itself. A log that is begun anew gives a START of the next attempt.
        """
        self.skipped = self.position = self.pending_count = 0
        self.is_live = True
        return self.iterate_records(self)
