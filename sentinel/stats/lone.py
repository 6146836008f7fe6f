"""Lone: is it always the same rank that is apart from the others?

Chance names another rank each time; a fault does not. `Lone` remembers who was furthest apart in
the last records, and by how much, and says who it is once nearly all name the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
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
    _seen: deque[tuple[int, float, int]] = field(default_factory=deque)

    def add(self, rank: int, degree: float, at: int) -> None:
        """Who was furthest apart in one record, how far, and at which step."""
        self._seen.append((rank, degree, at))
        if len(self._seen) > self.size:
            self._seen.popleft()

    def clear(self) -> None:
        """Begin anew."""
        self._seen.clear()

    @property
    def full(self) -> bool:
        """Whether there are enough records to say anything."""
        return len(self._seen) == self.size

    @property
    def rank(self) -> int | None:
        if not self.full:
            return None
        ranks: Sequence[int] = [rank for rank, _, _ in self._seen]
        most = max(set(ranks), key=ranks.count)
        return most if ranks.count(most) >= self.share * self.size else None

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
