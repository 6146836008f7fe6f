"""How much of its gain a series has lost again.

In contrast to `peak_drop`, levels are medians of 16 values and the noise comes from lagged changes,
so short peaks do not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sentinel.stats.best_level import BestLevel
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
class Drawdown(BestLevel):
    """First, best and current level, and the noise of the series."""

    level_values: int = LEVEL_VALUES
    current_values: int = CURRENT_VALUES
    _changes: RollingQuantiles = field(default_factory=lambda: RollingQuantiles(NOISE_CHANGES))

    def add(self, value: float) -> None:
        """Add a finite value."""
        if len(self._recent) >= CHANGE_LAG:
            self._changes.add(abs(value - self._recent[-CHANGE_LAG]))
        super().add(value)

    @property
    def noise(self) -> float:
        """Standard deviation of the noise, little affected by trends; 0 before nine values."""
        return self._changes.median * CHANGE_TO_SIGMA if len(self._changes) else 0.0
