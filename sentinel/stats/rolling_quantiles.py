"""Quantiles of the last few values, in constant memory; they are only sorted when one is asked."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from itertools import islice

IQR_TO_SIGMA = 1.349
"""An interquartile range over a standard deviation, for normal noise."""

MAX_UNSORTED_VALUES = 16
"""Values that may have come since the last question and still be sorted in one by one."""


@dataclass
class RollingQuantiles:
    """The last `size` values; median and spread are unmoved by outliers among them.

    >>> usual = RollingQuantiles(3)
    >>> for x in (1.0, 2.0, 9.0, 3.0):
    ...     usual.add(x)
    >>> len(usual), usual.median
    (3, 3.0)
    """

    size: int
    _arrived: deque[float] = field(init=False)
    _sorted: list[float] = field(default_factory=list)
    _unsorted_count: int = 0

    def __post_init__(self) -> None:
        # Those that left since the last question are still needed, to be taken out then.
        self._arrived = deque(maxlen=self.size + MAX_UNSORTED_VALUES)

    def __len__(self) -> int:
        return min(self.size, len(self._arrived))

    def add(self, value: float) -> None:
        """Take a finite value; the oldest leaves when there are more than `size`."""
        self._arrived.append(value)
        self._unsorted_count += 1
        if self._unsorted_count == self.size:
            # Nobody asks; what is kept is as large as if somebody did.
            self.sorted_values()

    def sorted_latest(self, count: int) -> list[float]:
        """The last values, a few more than `size` at most, sorted; fewer where there are fewer."""
        return sorted(islice(reversed(self._arrived), count))

    def value_before(self, count: int) -> float:
        """The value that has so many, at most `size`, after it. Raises IndexError before it."""
        return self._arrived[-count - 1]

    def quantile(self, share: float) -> float:
        """Value below which `share` of the window lies, linear between neighbours.

        Raises IndexError on an empty window.
        """
        return _quantile_of_sorted(self.sorted_values(), share)

    @property
    def median(self) -> float:
        """Middle of the window."""
        return median_of_sorted(self.sorted_values())

    @property
    def sigma(self) -> float:
        """Standard deviation of normal noise with the window's interquartile range."""
        return sigma_of_sorted(self.sorted_values())

    def sorted_values(self) -> list[float]:
        """The window, sorted; good until the next value, and not to be changed."""
        behind, size = self._unsorted_count, self.size
        if behind:
            self._unsorted_count = 0
            if behind > min(MAX_UNSORTED_VALUES, size >> 3):
                self._sorted = self.sorted_latest(size)
            else:
                self._insert_latest(behind)
        return self._sorted

    def _insert_latest(self, behind: int) -> None:
        window, arrived, size = self._sorted, self._arrived, self.size
        for back in range(-behind, 0):
            insort(window, arrived[back])
            if len(window) > size:
                del window[bisect_left(window, arrived[back - size])]


def median_of_sorted(window: list[float]) -> float:
    """Median of what is sorted already. Raises IndexError where there is nothing."""
    half = len(window) >> 1
    if len(window) & 1:
        return window[half]
    low = window[half - 1]
    return low + (window[half] - low) * 0.5


def sigma_of_sorted(window: list[float]) -> float:
    """The same of `sigma`, of what is sorted already. Raises IndexError where there is nothing."""
    return (_quantile_of_sorted(window, 0.75) - _quantile_of_sorted(window, 0.25)) / IQR_TO_SIGMA


def _quantile_of_sorted(window: list[float], share: float) -> float:
    place = share * (len(window) - 1)
    below = int(place)
    low = window[below]
    if place == below:
        return low
    return low + (window[below + 1] - low) * (place - below)
