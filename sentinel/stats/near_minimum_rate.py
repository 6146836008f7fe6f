"""Hits: how often a series stood above the lowest it has been, early and late.

Where almost every value is the lowest one, means and medians see nothing; counting does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

FIRST = 8
"""Values of a block in the beginning."""

MOST = 64
"""Blocks kept; when there are more, neighbours merge and a block is twice as long."""


@dataclass
class Hits:
    """Counts of the whole series in at most 64 blocks.

    >>> hits = Hits()
    >>> for x in [0.0] * 15 + [1.0]:
    ...     hits.add(x)
    >>> hits.share, hits.halves
    (0.0625, (0, 1))
    """

    lowest: float = inf
    _count: int = 0
    _length: int = FIRST
    _blocks: list[int] = field(default_factory=list)
    _in_block: int = 0

    def add(self, value: float) -> None:
        """Take a finite value. A new lowest one makes a hit of every value before it."""
        if value < self.lowest:
            self._raise_all()
            self.lowest = value
        if not self._in_block:
            self._blocks.append(0)
        self._blocks[-1] += value > self.lowest
        self._count += 1
        self._in_block = (self._in_block + 1) % self._length
        if len(self._blocks) == MOST and not self._in_block:
            self._blocks = [sum(self._blocks[at : at + 2]) for at in range(0, MOST, 2)]
            self._length *= 2

    def _raise_all(self) -> None:
        self._blocks = [self._length] * len(self._blocks)
        if self._in_block:
            self._blocks[-1] = self._in_block

    @property
    def share(self) -> float:
        """Share of hits among all values, 0 before the first."""
        return sum(self._blocks) / max(1, self._count)

    @property
    def halves(self) -> tuple[int, int]:
        """Hits in the first and in the last half of the whole blocks."""
        whole = self._blocks[: self._count // self._length]
        half = len(whole) // 2
        return sum(whole[:half]), sum(whole[len(whole) - half :])
