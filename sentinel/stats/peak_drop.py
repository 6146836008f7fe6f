"""How far a series is below its highest level, compared with its jitter.

In contrast to `drawdown`, levels are medians of 5 values, so that a short peak counts: a smooth
series that rises all the time is at its best only just before it falls. The jitter comes from
second differences, which neither a slope nor a slow drift affects.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sentinel.stats.best_level import BestLevel

LEVEL_VALUES = 5
"""Values whose median is a level."""

CURRENT_VALUES = 7
"""Values whose median is the current level: a dip of three values does not move it."""

JITTER_DIFFERENCES = 32
"""Second differences that the jitter is estimated from."""

DIFFERENCE_TO_SIGMA = 1.2533 / 6**0.5
"""Mean absolute second difference to standard deviation, for white normal noise. (A median would
be 0 for a reward that is mostly 0.)"""

MIN_FLOOR_VALUES = 8
"""Equal consecutive values that form a floor."""

MAX_PRIOR_FLOOR_SHARE = 0.1
"""Largest share of earlier values at the floor for it to be new."""


@dataclass
class PeakDrop(BestLevel):
    """First, best and current level, the jitter, and whether the series is on a new floor."""

    level_values: int = LEVEL_VALUES
    current_values: int = CURRENT_VALUES
    _jitters: deque[float] = field(default_factory=lambda: deque(maxlen=JITTER_DIFFERENCES))
    _count: int = 0
    _minimum: float | None = None
    _minimum_count: int = 0
    _minimum_run: int = 0

    def add(self, value: float) -> None:
        """Add a finite value."""
        recent = self._recent
        if len(recent) >= 2:
            self._jitters.append(abs(value - 2 * recent[-1] + recent[-2]))
        super().add(value)
        self._update_floor(value)

    def _update_floor(self, value: float) -> None:
        self._count += 1
        if self._minimum is None or value < self._minimum:
            self._minimum, self._minimum_count, self._minimum_run = value, 0, 0
        if value > self._minimum:
            self._minimum_run = 0
            return
        self._minimum_count += 1
        self._minimum_run += 1

    @property
    def jitter(self) -> float:
        """Standard deviation about the trend; 0 before three values."""
        count = len(self._jitters)
        return sum(self._jitters) / count * DIFFERENCE_TO_SIGMA if count else 0.0

    @property
    def is_on_new_floor(self) -> bool:
        """Whether the last values all equal the minimum, and few before them did."""
        before = self._count - self._minimum_run
        count_before = self._minimum_count - self._minimum_run
        return (
            self._minimum_run >= MIN_FLOOR_VALUES
            and before >= LEVEL_VALUES
            and count_before <= MAX_PRIOR_FLOOR_SHARE * before
        )
