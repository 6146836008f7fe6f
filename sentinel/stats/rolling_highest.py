"""The k-th highest of the last values: a one-sided reference for a single high value.

A spread measures both sides, and a series with two modes (gradient norms of steps with and without
a learning signal) has a spread so wide that no value is far from its median. Compared with the
highest few of its window, a high value does not depend on what lies below them; the `rank` is how
many earlier outliers the reference ignores, less one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class RollingHighest:
    """The last `size` values; `level` is the `rank`-th highest of them.

    A value costs O(log n) comparisons. Compare a value with `level` before adding it. The window
    stays `lag` values behind, so that a gradual rise is compared with what was before it; in the
    beginning it stays a third of the values behind. Raises ValueError if `lag` is over half `size`.

    >>> highest = RollingHighest(rank=2, size=4, min_values=3)
    >>> levels = []
    >>> for x in (1.0, 9.0, 2.0, 3.0, 1.0, 0.0, 0.0):
    ...     highest.add(x)
    ...     levels.append(highest.level)
    >>> levels
    [None, None, 2.0, 3.0, 3.0, 2.0, 1.0]
    """

    rank: int = 3
    size: int = 64
    min_values: int = 8
    lag: int = 0
    _arrived: deque[float] = field(default_factory=deque)
    _sorted: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if 2 * self.lag > self.size:
            # A third of the values, in the beginning, would never reach it.
            raise ValueError(f"the lag must be at most half of the size {self.size}: {self.lag}")

    def __len__(self) -> int:
        return len(self._arrived)

    @property
    def level(self) -> float | None:
        """The `rank`-th highest value of the window; None while it has less than `min_values`."""
        values = self._sorted
        return values[-self.rank] if len(values) >= max(self.rank, self.min_values) else None

    @property
    def maximum(self) -> float:
        """The highest of all values, with those of the lag. Raises ValueError without any."""
        return max(self._arrived)

    def add(self, value: float) -> None:
        """Add a value that is not NaN; with more than `size` the oldest is removed."""
        values, arrived = self._sorted, self._arrived
        arrived.append(value)
        count, lag = len(arrived), self.lag
        newest = count - (lag if 3 * lag <= count else count // 3)
        if newest > len(values):
            insort(values, arrived[newest - 1])
            if newest > self.size:
                del values[bisect_left(values, arrived.popleft())]
