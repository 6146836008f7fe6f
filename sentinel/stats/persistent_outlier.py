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
class Lone:
    """The last `size` records: `rank`, where at least `share` of them name it, and its `degree`.

    `rank` is None while nobody, or not yet anybody, stands out. `degree` is the median of the
    degrees, of whatever unit they are given in. `since` is where the window begins.
    """

    size: int = 16
    share: float = 0.875
    rank: int | None = None
    full: bool = False
    """Whether there are enough records to say anything."""
    _seen: deque[tuple[int, int]] = field(default_factory=deque)
    _degrees: RollingQuantiles = field(init=False)
    _times: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._degrees = RollingQuantiles(self.size)
        self._enough = self.share * self.size

    def add(self, rank: int, degree: float, at: int) -> None:
        """Who was furthest apart in one record, how far, and at which step."""
        times = self._times
        self._degrees.add(degree)
        self._seen.append((rank, at))
        times[rank] = times.get(rank, 0) + 1
        if self.full:
            self._drop(self._seen.popleft()[0])
        elif len(self._seen) == self.size:
            self.full, rank = True, max(times, key=times.__getitem__)
        # Only who was just named can have become the one, and only the one can have ceased to be.
        if self.full and (self.rank is None or times.get(self.rank, 0) < self._enough):
            self.rank = rank if times[rank] >= self._enough else None

    def _drop(self, rank: int) -> None:
        self._times[rank] -= 1
        if not self._times[rank]:
            del self._times[rank]

    @property
    def degree(self) -> float:
        return median(self._degrees.ordered()) if self._seen else 0.0

    @property
    def since(self) -> int:
        return self._seen[0][1] if self._seen else 0


def mean_of_others(count: int, mean: float, value: float) -> float:
    """Mean of at least one other, without this value, from that of all.

    >>> mean_of_others(3, 2.0, 3.0)
    1.5
    """
    return (count * mean - value) / (count - 1)


def others(count: int, mean: float, std: float, value: float) -> tuple[float, float]:
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
