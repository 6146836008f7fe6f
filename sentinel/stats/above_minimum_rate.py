"""Share of values above the minimum of a series, overall, early and late.

If almost every value is the minimum, means and medians show nothing; a count does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

FIRST_BLOCK_VALUES = 8
"""Initial length of a block."""

MAX_BLOCKS = 64
"""Blocks kept; when there are more, neighbours merge and a block is twice as long."""


@dataclass
class AboveMinimumRate:
    """Counts values above the minimum over the whole series, in at most 64 blocks.

    >>> rate = AboveMinimumRate()
    >>> for x in [0.0] * 15 + [1.0]:
    ...     rate.add(x)
    >>> rate.share, rate.counts_by_half
    (0.0625, (0, 1))
    """

    minimum: float = inf
    _count: int = 0
    _values_per_block: int = FIRST_BLOCK_VALUES
    _block_counts: list[int] = field(default_factory=list)
    _in_block: int = 0

    def add(self, value: float) -> None:
        """Add a finite value. After a new minimum every earlier value counts as above it."""
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
        """Share of values above the minimum, 0 before the first value."""
        return sum(self._block_counts) / max(1, self._count)

    @property
    def counts_by_half(self) -> tuple[int, int]:
        """Values above the minimum in the first and in the last half of the complete blocks."""
        complete = self._block_counts[: self._count // self._values_per_block]
        half = len(complete) // 2
        return sum(complete[:half]), sum(complete[len(complete) - half :])
