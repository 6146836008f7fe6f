"""Creep: when will something that rises steadily have reached its limit?

The lows of equal spans of time are kept at several scales, each four times as long as the one
before. A scale says something once it is full, and then only if all four quarters of it rose along
a straight line, each at least half as much as on the average, the last as much as the first: what
levels off, and what goes up and down, does not. It looks no further ahead than `FORESIGHT` times
what it saw. Lows, since a peak that passes is not there to stay.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from statistics import fmean

KEEP = 32
"""Lows of a scale."""

SCALES = 4

FOUR = 4
"""Lows of a scale that make one of the next, and parts in which a rise must show."""

FORESIGHT = 2.0

STRAIGHT = 5.0
"""Times that the rise must be over the scatter about its line."""

SLOWING = 0.75
"""A rise whose last part is less than this of its first will come to an end by itself."""

GAP = 8
"""Spans without a value after which nothing of before counts."""


@dataclass
class Creep:
    """Takes a level and its time in seconds; `finest` is the span of the first scale.

    With 30 seconds the scales see 16 minutes, 1, 4 and 17 hours. `rate` is that of the steady rise
    per second, 0 where there is none, and `seen` for how many seconds it has been. `low` is that
    of the last span.
    """

    finest: float = 30.0
    rate: float = 0.0
    seen: float = 0.0
    low: float = -inf
    _lows: list[deque[tuple[float, float]]] = field(default_factory=list)
    _open: list[tuple[float, float]] = field(default_factory=list)
    _latest: float = -inf

    def add(self, time: float, level: float) -> bool:
        """Take a finite level; True when `rate` was judged anew."""
        if not 0.0 <= time - self._latest <= GAP * self.finest:
            self._begin(time)
        self._latest = time
        began, low = self._open[0] if self._open else (time, inf)
        self._open[:1] = [(began, min(low, level))]
        if time - began < self.finest:
            return False
        self.low = min(low, level)
        self._close(began, self.low)
        self._open[:1] = []
        self.rate, self.seen = self._steadiest()
        return True

    def left(self, limit: float) -> float:
        """Seconds until the limit; infinite where nothing rises steadily, or it is too far off."""
        if self.rate <= 0.0:
            return inf
        since = self._latest - self._lows[0][-1][0]
        left = max(0.0, (limit - self.low) / self.rate - since)
        return left if left <= FORESIGHT * self.seen else inf

    def _begin(self, time: float) -> None:
        self._lows = [deque() for _ in range(SCALES)]
        self._open, self._latest = [], time
        self.rate = self.seen = 0.0

    def _close(self, at: float, low: float) -> None:
        """A span ended: a low of the first scale, and each fourth of a scale one of the next."""
        for scale, lows in enumerate(self._lows):
            lows.append((at, low))
            if len(lows) > KEEP:
                lows.popleft()
            place = int(at / (self.finest * FOUR ** (scale + 1)))
            if len(lows) < FOUR or place == int(lows[-2][0] / (self.finest * FOUR ** (scale + 1))):
                return
            at, low = lows[-FOUR][0], min(value for _, value in list(lows)[-FOUR:])

    def _steadiest(self) -> tuple[float, float]:
        """Rate and seconds seen of the longest scale that rises."""
        full = [_steady(list(lows)) for lows in reversed(self._lows) if len(lows) == KEEP]
        return next((found for found in full if found[0] > 0.0), (0.0, 0.0))


def _steady(lows: list[tuple[float, float]]) -> tuple[float, float]:
    """Rate per second and seconds seen of a steady rise; zeros where it is none."""
    size = len(lows) // FOUR
    parts = [fmean(y for _, y in lows[at : at + size]) for at in range(0, len(lows), size)]
    rises = [after - before for before, after in pairwise(parts)]
    slowing = rises[-1] < SLOWING * rises[0]
    if min(rises) <= 0.0 or min(rises) < 0.5 * fmean(rises) or slowing:
        return 0.0, 0.0
    middle, mean = fmean(t for t, _ in lows), fmean(y for _, y in lows)
    spread = sum((t - middle) ** 2 for t, _ in lows)
    rate = sum((t - middle) * (y - mean) for t, y in lows) / spread
    scatter = fmean((y - mean - rate * (t - middle)) ** 2 for t, y in lows) ** 0.5
    seen = lows[-1][0] - lows[0][0]
    return (rate, seen) if rate * seen > STRAIGHT * scatter else (0.0, 0.0)
