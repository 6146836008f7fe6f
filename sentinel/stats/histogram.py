"""Counts of observations in buckets, as Prometheus keeps them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate


@dataclass(slots=True)
class Histogram:
    """Counts of observations up to each of `bounds`, in ascending order, and their sum."""

    bounds: tuple[float, ...]
    total: float = 0.0
    counts: list[int] = field(default_factory=list)
    """Of each bucket alone; the last one has no bound."""

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Add a finite observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative_counts(self) -> list[int]:
        """The number of observations up to each bound, and of all.

        >>> histogram = Histogram((1.0, 5.0))
        >>> for value in (0.5, 1.0, 7.0):
        ...     histogram.observe(value)
        >>> histogram.cumulative_counts()
        [2, 2, 3]
        """
        return [*accumulate(self.counts)]

    def copy(self) -> Histogram:
        """A copy that later observations do not change."""
        return Histogram(self.bounds, self.total, self.counts.copy())
