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
    _recent: deque[float] = field(default_factory=deque)
    _changes: RollingQuantiles = field(default_factory=lambda: RollingQuantiles(CHANGES))

    def add(self, value: float) -> None:
        """Take a finite value."""
        if len(self._recent) >= APART:
            self._changes.add(abs(value - self._recent[-APART]))
        self._recent.append(value)
        if len(self._recent) < SMOOTH:
            return
        if len(self._recent) > SMOOTH:
            self._recent.popleft()
        level = median(self._recent)
        if self.start is None:
            self.start = level
        self.best = level if self.best is None else max(self.best, level)

    @property
    def now(self) -> float:
        """Median of the last 8 values.

        Raises statistics.StatisticsError before the first.
        """
        recent = list(self._recent)
        return median(recent[-NOW:])

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
