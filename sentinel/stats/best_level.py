"""First, best and current level of a series that should rise; levels are medians."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
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
        self.extend((value,))

    def extend(self, values: Iterable[float]) -> None:
        """Add finite values."""
        recent, best, size = self._recent, self.best_level, self.level_values
        above = self._above_best_count
        for value in values:
            if best is not None:
                if value > best:
                    above += 1
                if recent[-size] > best:
                    above -= 1
            recent.append(value)
            # The median can exceed the best level only if half of the values do.
            if best is None or 2 * above >= size:
                best, above = self._update_best(best)
        self.best_level, self._above_best_count = best, above

    def _update_best(self, best: float | None) -> tuple[float | None, int]:
        """The best level so far, and how many values of the current one are above it."""
        recent, size = self._recent, self.level_values
        if len(recent) < size:
            return None, 0
        latest = sorted(islice(recent, len(recent) - size, None))
        level = (
            (latest[(size - 1) // 2] + latest[size // 2]) / 2
            if size % 2 == 0
            else latest[size // 2]
        )
        if self.first_level is None:
            self.first_level = level
        best = level if best is None else max(best, level)
        return best, size - bisect_right(latest, best)

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
