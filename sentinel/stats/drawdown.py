"""Drawdown: how much of what a series has gained it has lost again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from sentinel.stats.rolling_quantiles import RollingQuantiles

LEVEL_VALUES = 16
"""Values whose median makes a level that counts as reached."""

CURRENT_VALUES = 5
"""Values whose median is the level now."""

NOISE_CHANGES = 64
"""Changes that tell the noise."""

CHANGE_LAG = 8
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

    first_level: float | None = None
    best_level: float | None = None
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=LEVEL_VALUES))
    _changes: RollingQuantiles = field(default_factory=lambda: RollingQuantiles(NOISE_CHANGES))
    _above_best_count: int = 0
    """Of the last 16 values, those over the best level."""

    def add(self, value: float) -> None:
        """Take a finite value."""
        recent, best = self._recent, self.best_level
        if len(recent) >= CHANGE_LAG:
            self._changes.add(abs(value - recent[-CHANGE_LAG]))
        if best is not None:
            self._above_best_count += (value > best) - (recent[0] > best)
        recent.append(value)
        # A median is over what half of the values are over, and only then need be known.
        if len(recent) == LEVEL_VALUES and (
            best is None or 2 * self._above_best_count >= LEVEL_VALUES
        ):
            self._update_best()

    def _update_best(self) -> None:
        level = median(self._recent)
        if self.first_level is None:
            self.first_level = level
        self.best_level = best = level if self.best_level is None else max(self.best_level, level)
        self._above_best_count = sum(value > best for value in self._recent)

    @property
    def current_level(self) -> float:
        """Median of the last 5 values.

        Raises statistics.StatisticsError before the first.
        """
        return median(list(self._recent)[-CURRENT_VALUES:])

    @property
    def noise(self) -> float:
        """Standard deviation of the noise, hardly moved by trends; 0 before nine values."""
        return self._changes.median * CHANGE_TO_SIGMA if len(self._changes) else 0.0

    @property
    def gain(self) -> float:
        """Best over start, 0 while unknown."""
        return (
            0.0
            if self.best_level is None or self.first_level is None
            else self.best_level - self.first_level
        )

    @property
    def drop(self) -> float:
        """Best over now, 0 while unknown."""
        return 0.0 if self.best_level is None else self.best_level - self.current_level
