"""Quantiles of the last values, in constant memory; values are sorted only on a query."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from itertools import islice

IQR_TO_SIGMA = 1.349
"""Interquartile range divided by standard deviation, for normal noise."""

CHANGE_TO_SIGMA = 1.4826 / 2**0.5
"""Standard deviation divided by median absolute change, for white normal noise."""

MAX_UNSORTED_VALUES = 16
"""Values since the last query that are inserted one by one; with more, all are sorted."""


@dataclass(slots=True)
class RollingQuantiles:
    """The last `size` values; outliers among them hardly affect median and spread.

    >>> window = RollingQuantiles(3)
    >>> for x in (1.0, 2.0, 9.0, 3.0):
    ...     window.add(x)
    >>> len(window), window.median
    (3, 3.0)
    """

    size: int
    _arrived: deque[float] = field(init=False)
    _sorted: list[float] = field(default_factory=list)
    _unsorted_count: int = 0

    def __post_init__(self) -> None:
        # Values that left since the last query are needed to remove them from the sorted list.
        self._arrived = deque(maxlen=self.size + MAX_UNSORTED_VALUES)

    def __len__(self) -> int:
        return min(self.size, len(self._arrived))

    def add(self, value: float) -> None:
        """Add a finite value; with more than `size` the oldest is removed."""
        self._arrived.append(value)
        self._unsorted_count += 1
        if self._unsorted_count >= self.size:
            # Without queries the sorted list would never be updated; this bounds its age.
            self.sorted_values()

    def sorted_latest(self, count: int) -> list[float]:
        """The last `count` values, sorted; fewer if there are fewer."""
        return sorted(islice(reversed(self._arrived), count))

    @property
    def median(self) -> float:
        """Median of the window."""
        return median_of_sorted(self.sorted_values())

    @property
    def sigma(self) -> float:
        """Standard deviation of normal noise with the interquartile range of the window."""
        return sigma_of_sorted(self.sorted_values())

    def sorted_values(self) -> list[float]:
        """The window, sorted; valid until the next value. Callers must not change it."""
        unsorted, size = self._unsorted_count, self.size
        if unsorted:
            self._unsorted_count = 0
            if unsorted > min(MAX_UNSORTED_VALUES, size >> 3):
                self._sorted = self.sorted_latest(size)
            else:
                self._insert_latest(unsorted)
        return self._sorted

    def _insert_latest(self, count: int) -> None:
        window, arrived, size = self._sorted, self._arrived, self.size
        for back in range(-count, 0):
            insort(window, arrived[back])
            if len(window) > size:
                del window[bisect_left(window, arrived[back - size])]


def median_of_sorted(window: list[float]) -> float:
    """Median of sorted values. Raises IndexError if there are none."""
    half = len(window) >> 1
    if len(window) & 1:
        return window[half]
    low = window[half - 1]
    return low + (window[half] - low) * 0.5


def sigma_of_sorted(window: list[float]) -> float:
    """`RollingQuantiles.sigma` of sorted values. Raises IndexError if there are none."""
    return (_quantile_of_sorted(window, 0.75) - _quantile_of_sorted(window, 0.25)) / IQR_TO_SIGMA


def _quantile_of_sorted(window: list[float], share: float) -> float:
    position = share * (len(window) - 1)
    below = int(position)
    low = window[below]
    if position == below:
        return low
    return low + (window[below + 1] - low) * (position - below)
