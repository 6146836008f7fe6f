"""Lone: is it always the same rank that is apart from the others?

Chance names another rank each time; a fault does not. `Lone` remembers who was furthest apart in
the last records, and by how much, and says who it is once nearly all name the same.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf, sqrt
from statistics import median

from sentinel.stats.rolling_quantiles import RollingQuantiles


@dataclass
class PersistentOutlier:
    """The last `size` records: `rank`, where at least `share` of them name it, and its `degree`.

    `rank` is None while nobody, or not yet anybody, stands out. `degree` is the median of the
    degrees, of whatever unit they are given in. `since` is where the window begins.
    """

    window: int = 16
    min_share: float = 0.875
    rank: int | None = None
    is_full: bool = False
    """Whether there are enough records to say anything."""
    _named_ranks: deque[tuple[int, int]] = field(default_factory=deque)
    _degrees: RollingQuantiles = field(init=False)
    _count_by_rank: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._degrees = RollingQuantiles(self.window)
        self._min_count = self.min_share * self.window

    def add(self, rank: int, degree: float, step: int) -> None:
        """Who was furthest apart in one record, how far, and at which step."""
        times = self._count_by_rank
        self._degrees.add(degree)
        self._named_ranks.append((rank, step))
        times[rank] = times.get(rank, 0) + 1
        if self.is_full:
            self._decrement(self._named_ranks.popleft()[0])
        elif len(self._named_ranks) == self.window:
            self.is_full, rank = True, max(times, key=times.__getitem__)
        # Only who was just named can have become the one, and only the one can have ceased to be.
        if self.is_full and (self.rank is None or times.get(self.rank, 0) < self._min_count):
            self.rank = rank if times[rank] >= self._min_count else None

    def _decrement(self, rank: int) -> None:
        self._count_by_rank[rank] -= 1
        if not self._count_by_rank[rank]:
            del self._count_by_rank[rank]

    @property
    def degree(self) -> float:
        return median(self._degrees.sorted_values()) if self._named_ranks else 0.0

    @property
    def since_step(self) -> int:
        return self._named_ranks[0][1] if self._named_ranks else 0


def mean_of_others(count: int, mean: float, value: float) -> float:
    """Mean of at least one other, without this value, from that of all.

    >>> mean_of_others(3, 2.0, 3.0)
    1.5
    """
    return (count * mean - value) / (count - 1)


def stats_of_others(count: int, mean: float, std: float, value: float) -> tuple[float, float]:
    """Mean and population deviation of the others, without this value, from those of all.

    >>> others(3, 2.0, sqrt(2 / 3), 3.0)
    (1.5, 0.5)
    """
    if count < 2:
        return mean, inf
    rest = mean_of_others(count, mean, value)
    # About their own mean, since the squares themselves would be large and nearly the same.
    squares = count * (std * std + (mean - rest) ** 2) - (value - rest) ** 2
    return rest, sqrt(max(0.0, squares / (count - 1)))
