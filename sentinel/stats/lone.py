"""Lone: is it always the same rank that is apart from the others?

Chance names another rank each time; a fault does not. `Lone` remembers who was furthest apart in
the last records, and by how much, and says who it is once nearly all name the same.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf, sqrt
from statistics import median


@dataclass
class Lone:
    """The last `size` records: `rank`, where at least `share` of them name it, and its `degree`.

    `rank` is None while nobody, or not yet anybody, stands out. `degree` is the median of the
    degrees, of whatever unit they are given in. `since` is where the window begins.
    """

    size: int = 16
    share: float = 0.875
    rank: int | None = None
    _seen: deque[tuple[int, float, int]] = field(default_factory=deque)
    _times: dict[int, int] = field(default_factory=dict)

    def add(self, rank: int, degree: float, at: int) -> None:
        """Who was furthest apart in one record, how far, and at which step."""
        self._seen.append((rank, degree, at))
        self._times[rank] = self._times.get(rank, 0) + 1
        if len(self._seen) > self.size:
            self._drop(self._seen.popleft()[0])
        # Only who was just named can have become the one, and only the one can have ceased to be.
        for one in (self.rank, rank):
            enough = one is not None and self._times.get(one, 0) >= self.share * self.size
            self.rank = one if enough and self.full else None
            if self.rank is not None:
                return

    def _drop(self, rank: int) -> None:
        self._times[rank] -= 1
        if not self._times[rank]:
            del self._times[rank]

    @property
    def full(self) -> bool:
        """Whether there are enough records to say anything."""
        return len(self._seen) == self.size

    @property
    def degree(self) -> float:
        return median(degree for _, degree, _ in self._seen) if self._seen else 0.0

    @property
    def since(self) -> int:
        return self._seen[0][2] if self._seen else 0


def others(count: int, mean: float, std: float, value: float) -> tuple[float, float]:
    """Mean and population deviation of the others, without this value, from those of all.

    >>> others(3, 2.0, sqrt(2 / 3), 3.0)
    (1.5, 0.5)
    """
    if count < 2:
        return mean, inf
    rest = (count * mean - value) / (count - 1)
    # About their own mean, since the squares themselves would be large and nearly the same.
    squares = count * (std * std + (mean - rest) ** 2) - (value - rest) ** 2
    return rest, sqrt(max(0.0, squares / (count - 1)))
