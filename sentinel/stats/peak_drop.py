"""Summit: how far a series stands below its highest level, against what it jitters by.

Levels are medians of few values, so that a short summit counts: a smooth series that rises for its
whole life has been at its best only just before it falls. The jitter is told from second
differences, which neither a slope nor a slow wander moves.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

LEVEL = 5
"""Values whose median makes a level that was reached."""

NOW = 7
"""Values whose median is the level now: a dip of three is none."""

CHANGES = 32
"""Second differences that tell the jitter."""

DIFFERENCE_TO_SIGMA = 1.2533 / 6**0.5
"""A mean absolute second difference over a standard deviation, for white normal noise. (A median
one would be 0 for a reward that is mostly 0.)"""

SAME = 8
"""Equal values in a row that make a floor."""

RARE = 0.1
"""Share of the values before it, at most, that were a floor: a usual one says nothing."""


@dataclass
class Summit:
    """First, highest and present level, the jitter, and whether the series lies on a new floor."""

    first: float | None = None
    highest: float | None = None
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=NOW))
    _jitters: deque[float] = field(default_factory=lambda: deque(maxlen=CHANGES))
    _over: int = 0
    """Of the last 5 values, those over the highest level."""
    _count: int = 0
    _lowest: float | None = None
    _times: int = 0
    _in_a_row: int = 0

    def add(self, value: float) -> None:
        """Take a finite value."""
        recent = self._recent
        if len(recent) >= 2:
            self._jitters.append(abs(value - 2 * recent[-1] + recent[-2]))
        highest = self.highest
        if highest is not None:
            self._over += (value > highest) - (recent[-LEVEL] > highest)
        recent.append(value)
        # A median is over what half of the values are over, and only then need be known.
        if len(recent) >= LEVEL and (highest is None or 2 * self._over >= LEVEL):
            self._raise_highest()
        self._note_floor(value)

    def _raise_highest(self) -> None:
        latest = list(self._recent)[-LEVEL:]
        level = median(latest)
        self.first = level if self.first is None else self.first
        self.highest = highest = level if self.highest is None else max(self.highest, level)
        self._over = sum(value > highest for value in latest)

    def _note_floor(self, value: float) -> None:
        self._count += 1
        if self._lowest is None or value < self._lowest:
            self._lowest, self._times, self._in_a_row = value, 0, 0
        if value > self._lowest:
            self._in_a_row = 0
            return
        self._times += 1
        self._in_a_row += 1

    @property
    def now(self) -> float:
        """Median of the last 7; statistics.StatisticsError before the first value."""
        return median(self._recent)

    @property
    def jitter(self) -> float:
        """Standard deviation about the trend; 0 before three values."""
        count = len(self._jitters)
        return sum(self._jitters) / count * DIFFERENCE_TO_SIGMA if count else 0.0

    @property
    def loss(self) -> float:
        """Highest over present level, 0 while unknown."""
        return 0.0 if self.highest is None else self.highest - self.now

    @property
    def climb(self) -> float:
        """Highest over first level, 0 while unknown."""
        return 0.0 if self.highest is None or self.first is None else self.highest - self.first

    @property
    def floored(self) -> bool:
        """Whether the last values are one number, lower than all, that was rare before."""
        before = self._count - self._in_a_row
        usual = self._times - self._in_a_row
        return self._in_a_row >= SAME and before >= LEVEL and usual <= RARE * before
