"""First, best and current level of a series that should rise; levels are medians."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median


@dataclass
class BestLevel:
    """Levels of `level_values` values; the current level is that of the last `current_values`.

    `first_level` is the first level, `best_level` the highest so far; both are None before.
    """

    level_values: int
    current_values: int
    first_level: float | None = None
    best_level: float | None = None
    _recent: deque[float] = field(init=False)
    _above_best_count: int = 0
    """Of the last `level_values` values, those above the best level."""

    def __post_init__(self) -> None:
        self._recent = deque(maxlen=max(self.level_values, self.current_values))

    def add(self, value: float) -> None:
        """Add a finite value."""
        recent, best, size = self._recent, self.best_level, self.level_values
        if best is not None:
            self._above_best_count += (value > best) - (recent[-size] > best)
        recent.append(value)
        # The median can exceed the best level only if half of the values do.
        if len(recent) >= size and (best is None or 2 * self._above_best_count >= size):
            self._update_best()

    def _update_best(self) -> None:
        latest = list(self._recent)[-self.level_values :]
        level = median(latest)
        if self.first_level is None:
            self.first_level = level
        self.best_level = best = level if self.best_level is None else max(self.best_level, level)
        self._above_best_count = sum([value > best for value in latest])

    @property
    def current_level(self) -> float:
        """Median of the last values. Raises statistics.StatisticsError before the first."""
        return median(list(self._recent)[-self.current_values :])

    @property
    def gain(self) -> float:
        """Best minus first level, 0 while unknown."""
        if self.best_level is None or self.first_level is None:
            return 0.0
        return self.best_level - self.first_level

    @property
    def drop(self) -> float:
        """Best minus current level, 0 while unknown."""
        return 0.0 if self.best_level is None else self.best_level - self.current_level
