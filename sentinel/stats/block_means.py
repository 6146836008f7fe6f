"""Means of equal blocks of a whole series, in at most 64 points."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, sqrt
from operator import mul

from sentinel.stats.mean_fall import error_inflation

VALUES_PER_GROUP = 8
"""Default number of values averaged first."""

MAX_BLOCKS = 64
"""Blocks kept; when there are more, neighbours merge and a block is twice as long."""


@dataclass(slots=True)
class BlockMeans:
    """Means of equal blocks of all values so far, in O(1) memory.

    Values are averaged in groups first; if `is_trimmed`, without minimum and maximum of each, so
    that a single outlier moves no block. `values_per_block` grows with the series.

    >>> blocks = BlockMeans()
    >>> for x in range(16):
    ...     _ = blocks.add(float(x))
    >>> blocks.means
    [3.5, 11.5]
    """

    values_per_group: int = VALUES_PER_GROUP
    is_trimmed: bool = True
    means: list[float] = field(default_factory=list)
    values_per_block: int = field(init=False)
    _group: list[float] = field(default_factory=list)
    _group_means: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values_per_block = self.values_per_group

    def add(self, value: float) -> bool:
        """Add a finite value; True if it completed a block."""
        self._group.append(value)
        if len(self._group) < self.values_per_group:
            return False
        group = sorted(self._group)[1:-1] if self.is_trimmed else self._group
        self._group_means.append(sum(group) / len(group))
        self._group.clear()
        if len(self._group_means) * self.values_per_group < self.values_per_block:
            return False
        self.means.append(sum(self._group_means) / len(self._group_means))
        self._group_means.clear()
        if len(self.means) > MAX_BLOCKS:
            self._merge()
        return True

    def _merge(self) -> None:
        # The last block (MAX_BLOCKS is even) is half a block of the new length and stays open.
        last = self.means.pop()
        self._group_means = [last] * (self.values_per_block // self.values_per_group)
        pairs = zip(self.means[0::2], self.means[1::2], strict=True)
        self.means = [(left + right) / 2 for left, right in pairs]
        self.values_per_block *= 2


def linear_fall(means: list[float]) -> tuple[float, float]:
    """The fall of a straight line through `means` from first to last, and its standard error.

    Least squares; the error allows for the lag-one correlation of the residuals. Fewer than three
    means have an infinite error.
    """
    n = len(means)
    if n < 3:
        return 0.0, inf
    mean, spread = sum(means) / n, n * (n * n - 1) / 12
    positions, deviations = [i - (n - 1) / 2 for i in range(n)], [y - mean for y in means]
    slope = sum(map(mul, positions, deviations)) / spread
    residuals = [y - slope * x for x, y in zip(positions, deviations, strict=True)]
    # Unlike a power, a product of large values is infinite.
    residual = sum(map(mul, residuals, residuals))
    changes = [later - earlier for earlier, later in pairwise(residuals)]
    inflation = error_inflation(n, sum(map(mul, changes, changes)), residual)
    error = sqrt(inflation * residual / (n - 2) / spread)
    return -slope * (n - 1), error * (n - 1)


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value among all, from 0; equal values have the mean of their ranks.

    >>> ranks([0.5, -8e9, 0.5, 3.0])
    [1.5, 0.0, 1.5, 3.0]
    """
    ordered = sorted(values)
    return [(bisect_left(ordered, x) + bisect_right(ordered, x) - 1) / 2 for x in values]


def fall_bounds(means: list[float], normal_quantile: float) -> tuple[float, float]:
    """Lower and upper confidence bound of `linear_fall`, by Student's t; infinite for few means.

    >>> lower, upper = fall_bounds([1.0, 1.1, 0.9, 1.0, 1.1, 0.9], 2.0)
    >>> lower < 0.0 < upper
    True
    """
    fall, error = linear_fall(means)
    margin = error if error == inf else student_quantile(normal_quantile, len(means) - 2) * error
    return fall - margin, fall + margin


def falls_faster(means: list[float], normal_quantile: float) -> bool:
    """Whether the means certainly fall, and the latter half by more than the first: a slow start.

    >>> falls_faster([9.0, 9.1, 9.0, 9.1, 9.0, 9.1, 9.0, 8.5, 8.0, 7.5, 7.0, 6.5], 2.0)
    True
    """
    half = len(means) // 2
    parts = (means, means[:half], means[half:])
    whole, early, late = (fall_bounds(part, normal_quantile) for part in parts)
    return whole[0] > 0.0 and late[0] > max(early[1], 0.0)


def student_quantile(normal_quantile: float, degrees: int) -> float:
    """Quantile of Student's t of the same probability, to first order in 1 / `degrees`.

    >>> round(student_quantile(2.2, 8), 2)
    2.6
    """
    return normal_quantile + (normal_quantile**3 + normal_quantile) / (4 * degrees)
