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

LOWS_PER_SCALE = 32
"""Lows of a scale."""

SCALE_COUNT = 4

SCALE_FACTOR = 4
"""Lows of a scale that make one of the next, and parts in which a rise must show."""

MAX_EXTRAPOLATION_FACTOR = 2.0

MIN_RISE_TO_SCATTER = 5.0
"""Times that the rise must be over the scatter about its line."""

MIN_LAST_TO_FIRST_RISE = 0.75
"""A rise whose last part is less than this of its first will come to an end by itself."""

MAX_GAP_SPANS = 8
"""Spans without a value after which nothing of before counts."""


@dataclass
class TimeToLimit:
    """Takes a level and its time in seconds; `finest` is the span of the first scale.

    With 30 seconds the scales see 16 minutes, 1, 4 and 17 hours. `rate` is that of the steady rise
    per second, 0 where there is none, and `seen` for how many seconds it has been. `low` is that
    of the last span.
    """

    finest_span_seconds: float = 30.0
    rise_per_second: float = 0.0
    rise_seconds: float = 0.0
    last_low: float = -inf
    _lows_by_scale: list[deque[tuple[float, float]]] = field(default_factory=list)
    _open_span: list[tuple[float, float]] = field(default_factory=list)
    _last_time: float = -inf

    def add(self, time: float, level: float) -> bool:
        """Take a finite level; True when `rate` was judged anew."""
        if not 0.0 <= time - self._last_time <= MAX_GAP_SPANS * self.finest_span_seconds:
            self._restart(time)
        self._last_time = time
        began, low = self._open_span[0] if self._open_span else (time, inf)
        self._open_span[:1] = [(began, min(low, level))]
        if time - began < self.finest_span_seconds:
            return False
        self.last_low = min(low, level)
        self._close_span(began, self.last_low)
        self._open_span[:1] = []
        self.rise_per_second, self.rise_seconds = self._longest_steady_rise()
        return True

    def seconds_left(self, limit: float) -> float:
        """Seconds until the limit; infinite where nothing rises steadily, or it is too far off."""
        if self.rise_per_second <= 0.0:
            return inf
        since = self._last_time - self._lows_by_scale[0][-1][0]
        left = max(0.0, (limit - self.last_low) / self.rise_per_second - since)
        return left if left <= MAX_EXTRAPOLATION_FACTOR * self.rise_seconds else inf

    def _restart(self, time: float) -> None:
        self._lows_by_scale = [deque() for _ in range(SCALE_COUNT)]
        self._open_span, self._last_time = [], time
        self.rise_per_second = self.rise_seconds = 0.0

    def _close_span(self, began_at: float, low: float) -> None:
        """A span ended: a low of the first scale, and each fourth of a scale one of the next."""
        for scale, lows in enumerate(self._lows_by_scale):
            lows.append((began_at, low))
            if len(lows) > LOWS_PER_SCALE:
                lows.popleft()
            place = int(began_at / (self.finest_span_seconds * SCALE_FACTOR ** (scale + 1)))
            if len(lows) < SCALE_FACTOR or place == int(
                lows[-2][0] / (self.finest_span_seconds * SCALE_FACTOR ** (scale + 1))
            ):
                return
            began_at, low = (
                lows[-SCALE_FACTOR][0],
                min(value for _, value in list(lows)[-SCALE_FACTOR:]),
            )

    def _longest_steady_rise(self) -> tuple[float, float]:
        """Rate and seconds seen of the longest scale that rises."""
        full = [
            _fit_steady_rise(list(lows))
            for lows in reversed(self._lows_by_scale)
            if len(lows) == LOWS_PER_SCALE
        ]
        return next((found for found in full if found[0] > 0.0), (0.0, 0.0))


def _fit_steady_rise(lows: list[tuple[float, float]]) -> tuple[float, float]:
    """Rate per second and seconds seen of a steady rise; zeros where it is none."""
    size = len(lows) // SCALE_FACTOR
    parts = [fmean(y for _, y in lows[at : at + size]) for at in range(0, len(lows), size)]
    rises = [after - before for before, after in pairwise(parts)]
    slowing = rises[-1] < MIN_LAST_TO_FIRST_RISE * rises[0]
    if min(rises) <= 0.0 or min(rises) < 0.5 * fmean(rises) or slowing:
        return 0.0, 0.0
    middle, mean = fmean(t for t, _ in lows), fmean(y for _, y in lows)
    spread = sum((t - middle) ** 2 for t, _ in lows)
    rate = sum((t - middle) * (y - mean) for t, y in lows) / spread
    scatter = fmean((y - mean - rate * (t - middle)) ** 2 for t, y in lows) ** 0.5
    seen = lows[-1][0] - lows[0][0]
    return (rate, seen) if rate * seen > MIN_RISE_TO_SCATTER * scatter else (0.0, 0.0)
