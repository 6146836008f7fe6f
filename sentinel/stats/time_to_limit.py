"""Time until a steadily rising level reaches its limit.

The minima of equal spans of time are stored at several scales, each with spans four times as long
as the one before. A full scale shows a steady rise if all four quarters of it rise along a straight
line, each by at least half the average and the last by `MIN_LAST_TO_FIRST_RISE` of the first, which
excludes levels that flatten or oscillate. The extrapolation reaches `MAX_EXTRAPOLATION_FACTOR`
times as far as the rise was observed. Minima are used since short peaks do not last.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from statistics import fmean

LOWS_PER_SCALE = 32
"""Minima stored per scale."""

SCALE_COUNT = 4

SCALE_FACTOR = 4
"""Spans of a scale that form one of the next, and parts that must rise each."""

MAX_EXTRAPOLATION_FACTOR = 2.0

MIN_RISE_TO_SCATTER = 5.0
"""Least ratio of the rise to the scatter about its line."""

MIN_LAST_TO_FIRST_RISE = 0.75
"""Least ratio of the last part of a rise to the first; below it the rise is ending."""

MAX_GAP_SPANS = 8
"""Spans without a value after which the history is discarded."""


@dataclass(slots=True)
class TimeToLimit:
    """Estimates from levels and their times in seconds; `finest_span_seconds` is the first scale.

    With 30 seconds the scales cover 16 minutes, 1, 4 and 17 hours. `rise_per_second` is the rate of
    the steady rise, 0 if there is none; `rise_seconds` is how long it was observed. `last_low` is
    the minimum of the last span.
    """

    finest_span_seconds: float = 30.0
    rise_per_second: float = 0.0
    rise_seconds: float = 0.0
    last_low: float = -inf
    _lows_by_scale: list[deque[tuple[float, float]]] = field(default_factory=list)
    _open_span: list[tuple[float, float]] = field(default_factory=list)
    _last_time: float = -inf

    def add(self, time: float, level: float) -> bool:
        """Add a finite level; True if `rise_per_second` was updated."""
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
        """Seconds until the limit; infinite without a steady rise, or if it is too far off."""
        if self.rise_per_second <= 0.0:
            return inf
        elapsed = self._last_time - self._lows_by_scale[0][-1][0]
        left = max(0.0, (limit - self.last_low) / self.rise_per_second - elapsed)
        return left if left <= MAX_EXTRAPOLATION_FACTOR * self.rise_seconds else inf

    def _restart(self, time: float) -> None:
        self._lows_by_scale = [deque() for _ in range(SCALE_COUNT)]
        self._open_span, self._last_time = [], time
        self.rise_per_second = self.rise_seconds = 0.0

    def _close_span(self, began_at: float, low: float) -> None:
        """Add a span's minimum to the first scale; every fourth of a scale goes to the next."""
        for scale, lows in enumerate(self._lows_by_scale):
            lows.append((began_at, low))
            if len(lows) > LOWS_PER_SCALE:
                lows.popleft()
            interval = int(began_at / (self.finest_span_seconds * SCALE_FACTOR ** (scale + 1)))
            if len(lows) < SCALE_FACTOR or interval == int(
                lows[-2][0] / (self.finest_span_seconds * SCALE_FACTOR ** (scale + 1))
            ):
                return
            began_at, low = (
                lows[-SCALE_FACTOR][0],
                min(value for _, value in list(lows)[-SCALE_FACTOR:]),
            )

    def _longest_steady_rise(self) -> tuple[float, float]:
        """Rate and duration of the rise on the longest scale that rises."""
        rises = [
            _fit_steady_rise(list(lows))
            for lows in reversed(self._lows_by_scale)
            if len(lows) == LOWS_PER_SCALE
        ]
        return next((rise for rise in rises if rise[0] > 0.0), (0.0, 0.0))


def _fit_steady_rise(lows: list[tuple[float, float]]) -> tuple[float, float]:
    """Rate per second and duration in seconds of a steady rise; zeros if there is none."""
    size = len(lows) // SCALE_FACTOR
    parts = [fmean(y for _, y in lows[at : at + size]) for at in range(0, len(lows), size)]
    rises = [after - before for before, after in pairwise(parts)]
    is_slowing = rises[-1] < MIN_LAST_TO_FIRST_RISE * rises[0]
    if min(rises) <= 0.0 or min(rises) < 0.5 * fmean(rises) or is_slowing:
        return 0.0, 0.0
    middle, mean = fmean(t for t, _ in lows), fmean(y for _, y in lows)
    spread = sum((t - middle) ** 2 for t, _ in lows)
    rate = sum((t - middle) * (y - mean) for t, y in lows) / spread
    scatter = fmean((y - mean - rate * (t - middle)) ** 2 for t, y in lows) ** 0.5
    duration = lows[-1][0] - lows[0][0]
    return (rate, duration) if rate * duration > MIN_RISE_TO_SCATTER * scatter else (0.0, 0.0)
