"""Drawdown: how much of what a series has gained it has lost again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from sentinel.stats.rolling_quantiles import RollingQuantiles

SMOOTH = 16
"""Values whose median makes a level that counts as reached."""

NOW = 5
"""Values whose median is the level now."""

CHANGES = 64
"""Changes that tell the noise."""

APART = 8
"""Values between the two of a change: near neighbours are alike where noise is autocorrelated, and
trends tell between far ones."""

CHANGE_TO_SIGMA = 1.4826 / 2**0.5
"""A median absolute change over a standard deviation, for white normal noise."""


@dataclass
class Drawdown:
    """Start, best and present level of a series that should rise, all of them medians.

    `start` is the median of the first 16 values and `best` the highest median of 16 so far, both
    None before there are 16.
    """

    start: float | None = None
    best: float | None = None
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=SMOOTH))
    _changes: RollingQuantiles = field(default_factory=lambda: RollingQuantiles(CHANGES))
    _over: int = 0
    """Of the last 16 values, those over the best level."""

    def add(self, value: float) -> None:
        """Take a finite value."""
        recent, best = self._recent, self.best
        if len(recent) >= APART:
            self._changes.add(abs(value - recent[-APART]))
        if best is not None:
            self._over += (value > best) - (recent[0] > best)
        recent.append(value)
        # A median is over what half of the values are over, and only then need be known.
        if len(recent) == SMOOTH and (best is None or 2 * self._over >= SMOOTH):
            self._raise_best()

    def _raise_best(self) -> None:
        level = median(self._recent)
        if self.start is None:
            self.start = level
        self.best = best = level if self.best is None else max(self.best, level)
        self._over = sum(value > best for value in self._recent)

    @property
    def now(self) -> float:
        """Median of the last 5 values.

        Raises statistics.StatisticsError before the first.
        """
        return median(list(self._recent)[-NOW:])

    @property
    def noise(self) -> float:
        """Standard deviation of the noise, hardly moved by trends; 0 before nine values."""
        return self._changes.median * CHANGE_TO_SIGMA if len(self._changes) else 0.0

    @property
    def gain(self) -> float:
        """Best over start, 0 while unknown."""
        return 0.0 if self.best is None or self.start is None else self.best - self.start

    @property
    def loss(self) -> float:
        """Best over now, 0 while unknown."""
        return 0.0 if self.best is None else self.best - self.now
