"""Territory: has a series gone where it has never been before?

Heavy-tailed series come back from a calm stretch to an old height, which looks like a rise to any
window shorter than the run. Asking for a height never held before tells the two apart.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

BLOCK_VALUES = 8
"""Values whose median makes one height."""

FRESH_BLOCKS = 3
"""Blocks that are too young to count as known ground."""


@dataclass
class NewExtreme:
    """Compares the median of the last 8 values with the greatest such median of older blocks.

    `known` is that greatest median, None while the run is younger than four blocks.
    """

    previous_maximum: float | None = None
    _recent: deque[float] = field(default_factory=deque)
    _block: list[float] = field(default_factory=list)
    _fresh_medians: deque[float] = field(default_factory=deque)

    @property
    def current_level(self) -> float:
        """Median of the last 8 values, of fewer in the beginning.

        Raises statistics.StatisticsError before the first.
        """
        return median(self._recent)

    @property
    def is_new(self) -> bool:
        """Whether the series stands above all it has known."""
        return self.previous_maximum is None or self.current_level > self.previous_maximum

    def add(self, value: float) -> None:
        """Take a finite value."""
        self._recent.append(value)
        if len(self._recent) > BLOCK_VALUES:
            self._recent.popleft()
        self._block.append(value)
        if len(self._block) == BLOCK_VALUES:
            self._fresh_medians.append(median(self._block))
            self._block.clear()
        if len(self._fresh_medians) > FRESH_BLOCKS:
            old = self._fresh_medians.popleft()
            self.previous_maximum = (
                old if self.previous_maximum is None else max(self.previous_maximum, old)
            )
