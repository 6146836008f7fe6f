"""Tests whether the level of a series is above every earlier level of the run.

A heavy-tailed series returns from a low stretch to an old level, which any window shorter than the
run takes for a rise. A level never held before distinguishes the two.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

BLOCK_VALUES = 8
"""Values whose median is a level."""

FRESH_BLOCKS = 3
"""Newest blocks, which do not count as earlier levels yet."""


@dataclass(slots=True)
class NewExtreme:
    """Compares the median of the last 8 values with the greatest median of older blocks of 8.

    `previous_maximum` is that greatest median, None before four blocks. The first blocks do not
    count once they are less than `transient_share` of all: a run begins with a transient, and its
    level in there is not usual any more.
    """

    transient_share: float = 0.0
    previous_maximum: float | None = None
    _maxima: list[float] = field(default_factory=list)
    """Greatest medians of block 1, blocks 2 to 3, 4 to 7 and so on."""
    _old_count: int = 0
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=BLOCK_VALUES))
    _block_count: int = 0
    """Values since the last complete block."""
    _fresh_medians: deque[float] = field(default_factory=deque)

    @property
    def current_level(self) -> float:
        """Median of the last 8 values, or of all if there are fewer.

        Raises statistics.StatisticsError before the first.
        """
        return median(self._recent)

    @property
    def is_new(self) -> bool:
        """Whether the current level is above all earlier ones."""
        return self.previous_maximum is None or self.current_level > self.previous_maximum

    def add(self, value: float) -> None:
        """Add a finite value."""
        self._recent.append(value)
        self._block_count += 1
        if self._block_count < BLOCK_VALUES:
            return
        self._block_count = 0
        self._fresh_medians.append(median(self._recent))
        if len(self._fresh_medians) > FRESH_BLOCKS:
            self._add_old(self._fresh_medians.popleft())

    def _add_old(self, level: float) -> None:
        self._old_count += 1
        group = self._old_count.bit_length() - 1
        if group == len(self._maxima):
            self._maxima.append(level)
        self._maxima[group] = max(self._maxima[group], level)
        forgotten = int(self.transient_share * self._old_count)
        self.previous_maximum = max(self._maxima[(forgotten + 1).bit_length() - 1 :])
