"""Compares the first values of a series with its last ones, in constant memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf
from statistics import median


@dataclass(slots=True)
class FirstAndLast:
    """The first and the last `size` values of a series, and its lowest value.

    >>> accuracy = FirstAndLast(2)
    >>> for x in (0.1, 0.2, 0.4, 0.5):
    ...     accuracy.add(x)
    >>> accuracy.is_full, accuracy.has_risen(0.2), accuracy.has_risen(0.3)
    (True, True, False)
    """

    size: int = 4
    count: int = 0
    lowest: float = inf
    first: list[float] = field(default_factory=list)
    last: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        self.last = deque(maxlen=self.size)

    def add(self, value: float) -> None:
        """Add a finite value."""
        self.count += 1
        self.lowest = min(self.lowest, value)
        if len(self.first) < self.size:
            self.first.append(value)
        self.last.append(value)

    @property
    def is_full(self) -> bool:
        """Whether no value is both among the first and among the last."""
        return self.count >= 2 * self.size

    def has_risen(self, by: float) -> bool:
        """Whether all last values exceed all first ones, and their median does so by over `by`."""
        return (
            self.is_full
            and min(self.last) > max(self.first)
            and median(self.last) - median(self.first) > by
        )
