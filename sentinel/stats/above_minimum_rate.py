"""Hits: how often a series stood above the lowest it has been, early and late.

Where almost every value is the lowest one, means and medians see nothing; counting does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

FIRST_BLOCK_VALUES = 8
"""Values of a block in the beginning."""

MAX_BLOCKS = 64
"""Blocks kept; when there are more, neighbours merge and a block is twice as long."""


@dataclass
class AboveMinimumRate:
    """Counts of the whole series in at most 64 blocks.

    >>> hits = Hits()
    >>> for x in [0.0] * 15 + [1.0]:
    ...     hits.add(x)
    >>> hits.share, hits.halves
    (0.0625, (0, 1))
    """

    minimum: float = inf
    _count: int = 0
    _values_per_block: int = FIRST_BLOCK_VALUES
    _block_counts: list[int] = field(default_factory=list)
    _in_block: int = 0

    def add(self, value: float) -> None:
        """Take a finite value. A new lowest one makes a hit of every value before it."""
        if value < self.minimum:
            self._count_all_above()
            self.minimum = value
        if not self._in_block:
            self._block_counts.append(0)
        self._block_counts[-1] += value > self.minimum
        self._count += 1
        self._in_block = (self._in_block + 1) % self._values_per_block
        if len(self._block_counts) == MAX_BLOCKS and not self._in_block:
            self._block_counts = [
                sum(self._block_counts[at : at + 2]) for at in range(0, MAX_BLOCKS, 2)
            ]
            self._values_per_block *= 2

    def _count_all_above(self) -> None:
        self._block_counts = [self._values_per_block] * len(self._block_counts)
        if self._in_block:
            self._block_counts[-1] = self._in_block

    @property
    def share(self) -> float:
        """Share of hits among all values, 0 before the first."""
        return sum(self._block_counts) / max(1, self._count)

    @property
    def counts_by_half(self) -> tuple[int, int]:
        """Hits in the first and in the last half of the whole blocks."""
        whole = self._block_counts[: self._count // self._values_per_block]
        half = len(whole) // 2
        return sum(whole[:half]), sum(whole[len(whole) - half :])
