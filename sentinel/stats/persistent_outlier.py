"""Finds a rank that is persistently the outlier among all ranks.

Chance picks another rank in each record; a fault does not. `PersistentOutlier` stores the rank that
was furthest from the others in the last records, and how far, and names it once nearly all records
agree.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf, sqrt
from statistics import median


@dataclass(slots=True)
class PersistentOutlier:
    """The `rank` that at least `min_share` of the last `window` records name, else None.

    `degree` is the median of the degrees, in the unit they are given in; 0 before the first.
    `since_step` is the step of the first of these records that names it.
    """

    window: int = 16
    min_share: float = 0.875
    rank: int | None = None
    is_full: bool = False
    """Whether the window is full."""
    _named_ranks: deque[tuple[int, int]] = field(default_factory=deque)
    _degrees: deque[float] = field(init=False)
    _min_count: float = field(init=False)
    _count_by_rank: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._degrees = deque(maxlen=self.window)
        self._min_count = self.min_share * self.window

    def add(self, rank: int, degree: float, step: int) -> None:
        """Add the rank that is furthest from the others in one record, how far, and the step."""
        counts, named = self._count_by_rank, self._named_ranks
        self._degrees.append(degree)
        named.append((rank, step))
        if self.is_full:
            oldest, _ = named.popleft()
            if oldest != rank:
                counts[rank] = counts.get(rank, 0) + 1
                counts[oldest] -= 1
                if not counts[oldest]:
                    del counts[oldest]
            elif rank == self.rank:
                return
        else:
            counts[rank] = counts.get(rank, 0) + 1
        if not self.is_full and len(named) == self.window:
            self.is_full, rank = True, max(counts, key=counts.__getitem__)
        # Only the rank just added can reach the share, and only `rank` can fall below it.
        if self.is_full and (self.rank is None or counts.get(self.rank, 0) < self._min_count):
            self.rank = rank if counts[rank] >= self._min_count else None

    @property
    def degree(self) -> float:
        """Median degree in the window; 0 before the first record."""
        return median(self._degrees or [0.0])

    @property
    def since_step(self) -> int:
        """Step of the first record in the window that names `rank`; 0 if there is none."""
        return next((step for rank, step in self._named_ranks if rank == self.rank), 0)


def mean_of_others(count: int, mean: float, value: float) -> float:
    """Mean of the other values, of which there is at least one, from the mean of all.

    >>> mean_of_others(3, 2.0, 3.0)
    1.5
    """
    return (count * mean - value) / (count - 1)


def stats_of_others(count: int, mean: float, std: float, value: float) -> tuple[float, float]:
    """Mean and population standard deviation of the other values, from those of all.

    >>> stats_of_others(3, 2.0, sqrt(2 / 3), 3.0)
    (1.5, 0.5)
    """
    if count < 2:
        return mean, inf
    others = mean_of_others(count, mean, value)
    # About their own mean: the difference of plain sums of squares would lose precision.
    squares = count * (std * std + (mean - others) ** 2) - (value - others) ** 2
    return others, sqrt(max(0.0, squares / (count - 1)))
