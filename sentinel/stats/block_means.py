"""Means of equal blocks of a whole series, in at most 64 points."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, sqrt
from operator import mul

VALUES_PER_GROUP = 8
"""Values averaged first, without minimum and maximum: a single outlier moves no block."""

MAX_BLOCKS = 64
"""Blocks kept; when there are more, neighbours merge and a block is twice as long."""


@dataclass
class BlockMeans:
    """Trimmed means of equal blocks of all values so far, in O(1) memory.

    `values_per_block` grows with the series.

    >>> blocks = BlockMeans()
    >>> for x in range(16):
    ...     _ = blocks.add(float(x))
    >>> blocks.means
    [3.5, 11.5]
    """

    means: list[float] = field(default_factory=list)
    values_per_block: int = VALUES_PER_GROUP
    _group: list[float] = field(default_factory=list)
    _group_means: list[float] = field(default_factory=list)

    def add(self, value: float) -> bool:
        """Add a finite value; True if it completed a block."""
        self._group.append(value)
        if len(self._group) < VALUES_PER_GROUP:
            return False
        trimmed = sorted(self._group)[1:-1]
        self._group_means.append(sum(trimmed) / len(trimmed))
        self._group.clear()
        if len(self._group_means) * VALUES_PER_GROUP < self.values_per_block:
            return False
        self.means.append(sum(self._group_means) / len(self._group_means))
        self._group_means.clear()
        if len(self.means) > MAX_BLOCKS:
            self._merge()
        return True

    def _merge(self) -> None:
        # The last block (MAX_BLOCKS is even) is half a block of the new length and stays open.
        last = self.means.pop()
        self._group_means = [last] * (self.values_per_block // VALUES_PER_GROUP)
        pairs = zip(self.means[0::2], self.means[1::2], strict=True)
        self.means = [(left + right) / 2 for left, right in pairs]
        self.values_per_block *= 2


def linear_fall(means: list[float]) -> tuple[float, float]:
    """The fall of a straight line through `means` from first to last, and its standard error.

    Least squares with independent errors. Fewer than three means have an infinite error.
    """
    n = len(means)
    if n < 3:
        return 0.0, inf
    mean, spread = sum(means) / n, n * (n * n - 1) / 12
    positions, deviations = [i - (n - 1) / 2 for i in range(n)], [y - mean for y in means]
    slope = sum(map(mul, positions, deviations)) / spread
    residual = sum([(y - slope * x) ** 2 for x, y in zip(positions, deviations, strict=True)])
    error = sqrt(residual / (n - 2) / spread)
    return -slope * (n - 1), error * (n - 1)
