"""Reading: the records of one file, and how much of it could not be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sentinel.record import Record


@dataclass
class Reading:
    """Iterate it for the records, in the order of the file; `skipped` is known afterwards.

    `skipped` counts lines or rows that hold no record: not JSON, too long, or without a number.
    """

    records: Callable[[Reading], Iterator[Record]]
    skipped: int = 0

    def __iter__(self) -> Iterator[Record]:
        self.skipped = 0
        return self.records(self)
