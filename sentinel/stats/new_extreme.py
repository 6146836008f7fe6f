"""Territory: has a series gone where it has never been before?

Heavy-tailed series come back from a calm stretch to an old height, which looks like a rise to any
window shorter than the run. Asking for a height never held before tells the two apart.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

BLOCK = 8
"""Values whose median makes one height."""

FRESH = 3
"""Blocks that are too young to count as known ground."""


@dataclass
class Territory:
    """Compares the median of the last 8 values with the greatest such median of older blocks.

    `known` is that greatest median, None while the run is younger than four blocks.
    """

    known: float | None = None
    _recent: deque[float] = field(default_factory=deque)
    _block: list[float] = field(default_factory=list)
    _fresh: deque[float] = field(default_factory=deque)

    @property
    def height(self) -> float:
        """Median of the last 8 values, of fewer in the beginning.

        Raises statistics.StatisticsError before the first.
        """
        return median(self._recent)

    @property
    def new(self) -> bool:
        """Whether the series stands above all it has known."""
        return self.known is None or self.height > self.known

    def add(self, value: float) -> None:
        """Take a finite value."""
        self._recent.append(value)
        if len(self._recent) > BLOCK:
            self._recent.popleft()
        self._block.append(value)
        if len(self._block) == BLOCK:
            self._fresh.append(median(self._block))
            self._block.clear()
        if len(self._fresh) > FRESH:
            old = self._fresh.popleft()
            self.known = old if self.known is None else max(self.known, old)
