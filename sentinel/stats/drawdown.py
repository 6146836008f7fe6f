"""How much of its gain a series has lost again.

In contrast to `peak_drop`, levels are medians of 16 values and the noise comes from lagged changes,
so short peaks do not count.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from sentinel.stats.rolling_quantiles import CHANGE_TO_SIGMA, RollingQuantiles

LEVEL_VALUES = 16
"""Values whose median is a level."""

CURRENT_VALUES = 5
"""Values whose median is the current level."""

NOISE_CHANGES = 64
"""Changes that the noise is estimated from."""

CHANGE_LAG = 8
"""Values between the two of a change: closer ones are alike if noise is autocorrelated, and more
distant ones differ by the trend."""


@dataclass
class Drawdown:
    """First, best and current level of a series that should rise; all are medians.

    `first_level` is the median of the first 16 values, `best_level` the highest median of 16 values
    so far; both are None before 16 values.
    """

    first_level: float | None = None
    best_level: float | None = None
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=LEVEL_VALUES))
    _changes: RollingQuantiles = field(default_factory=lambda: RollingQuantiles(NOISE_CHANGES))
    _above_best_count: int = 0
    """Of the last 16 values, those above the best level."""

    def add(self, value: float) -> None:
        """Add a finite value."""
        recent, best = self._recent, self.best_level
        if len(recent) >= CHANGE_LAG:
            self._changes.add(abs(value - recent[-CHANGE_LAG]))
        if best is not None:
            self._above_best_count += (value > best) - (recent[0] > best)
        recent.append(value)
        # The median can exceed the best level only if half of the values do.
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
        """Standard deviation of the noise, little affected by trends; 0 before nine values."""
        return self._changes.median * CHANGE_TO_SIGMA if len(self._changes) else 0.0

    @property
    def gain(self) -> float:
        """Best minus first level, 0 while unknown."""
        return (
            0.0
            if self.best_level is None or self.first_level is None
            else self.best_level - self.first_level
        )

    @property
    def drop(self) -> float:
        """Best minus current level, 0 while unknown."""
        return 0.0 if self.best_level is None else self.best_level - self.current_level
