"""Quantiles of the last few values, each step in logarithmic search and constant memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field

IQR_TO_SIGMA = 1.349
"""An interquartile range over a standard deviation, for normal noise."""


@dataclass
class RollingQuantiles:
    """Keeps the last `size` values sorted; median and spread are unmoved by outliers among them.

    >>> usual = RollingQuantiles(3)
    >>> for x in (1.0, 2.0, 9.0, 3.0):
    ...     usual.add(x)
    >>> len(usual), usual.median
    (3, 3.0)
    """

    size: int
    _arrived: deque[float] = field(default_factory=deque)
    _sorted: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> None:
        """Take a finite value; the oldest leaves when there are more than `size`."""
        self._arrived.append(value)
        insort(self._sorted, value)
        if len(self._sorted) > self.size:
            del self._sorted[bisect_left(self._sorted, self._arrived.popleft())]

    def quantile(self, share: float) -> float:
        """Value below which `share` of the window lies, linear between neighbours.

        Raises IndexError on an empty window.
        """
        place = share * (len(self._sorted) - 1)
        below = int(place)
        low = self._sorted[below]
        if place == below:
            return low
        return low + (self._sorted[below + 1] - low) * (place - below)

    @property
    def median(self) -> float:
        """Middle of the window."""
        return self.quantile(0.5)

    @property
    def sigma(self) -> float:
        """Standard deviation of normal noise with the window's interquartile range."""
        return (self.quantile(0.75) - self.quantile(0.25)) / IQR_TO_SIGMA
