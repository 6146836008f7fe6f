"""How far the mean of a series is below its best mean, at five scales, in standard errors.

The best and the current mean are of equally many values, so that a rise is never a fall; the best
is without its highest value and the current one without its lowest, so that no outlier is a fall.
The noise is a mean of squares, so that it is not 0 where values repeat. It comes from falls only,
so that a rise is no noise, and not from the latest values, which may be part of a fall.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, log, sqrt
from operator import sub
from typing import NamedTuple

SCALES = (4, 8, 16, 32, 64)
"""Numbers of values whose mean is compared with the best such mean."""

RECENT_VALUES = 128
"""Newest values that are kept."""

START_VALUES = 8
"""First values, whose mean is the start."""

SWING_VALUES = 16
"""Newest values whose changes bound the error of a current mean; one of them may be the fall."""

CHANGE_LAG = 8
"""Values between the two of a change: closer ones are alike if noise is autocorrelated, and more
distant ones differ by the trend."""

GROUP_VALUES = 8
"""Values that become part of the noise at once."""

MAX_PENDING_VALUES = 64
"""Newest values that are not part of the noise yet; at most half of all."""

NEWEST_GROUPS = 3
"""Newest groups that never count as noise."""

PENDING_SHARE = 0.5
"""Share of the other pending changes that counts, since a slow fall may be among them."""

MAX_PENDING_BLOCK_VALUES = 16
"""The same for the falls of block means, at least one block."""

MIN_NOISE_WEIGHT = 15.0
"""Changes before which the noise is unknown: two groups."""

MAX_WEIGHT = 64.0
"""Groups, and blocks of a scale, that the noise remembers; earlier ones fade."""

PRIOR_BLOCKS = 4.0
"""Weight of independent noise, in blocks, in the noise of block means."""

SMALL_SAMPLE = 16.0
"""Changes at which a variance counts twice, since it is so uncertain."""

ERROR_FACTOR = 1.1
"""Factor on errors, for tails heavier than normal."""

RECENT_ERRORS = 2.0
"""Standard errors by which the current mean is below that of the recent values before."""


class Fall(NamedTuple):
    """The fall at one scale, from the mean `best` of `scale` values to the mean `current`.

    `errors` is the fall in standard errors: where something was gained, below the best mean, less
    what the best of as many means of noise exceeds the mean; otherwise below the mean of all values
    before. `gain` is best minus start, 0 if no scale has a significant one. `latest` are the values
    of the current mean.
    """

    scale: int
    best: float
    current: float
    errors: float
    gain: float
    latest: list[float]

    @property
    def low_count(self) -> int:
        """How many of the values are far nearer to the current than to the best mean."""
        low = self.current + (self.best - self.current) / 4.0
        return sum([value < low for value in self.latest])

    @property
    def size(self) -> float:
        """Best minus current mean."""
        return self.best - self.current


@dataclass(slots=True)
class FadingMean:
    """Mean in which earlier values fade."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, total: float, weight: float) -> None:
        """Add values with this total and number."""
        keep = 1.0 - 1.0 / MAX_WEIGHT
        self.total, self.weight = self.total * keep + total, self.weight * keep + weight

    @property
    def mean(self) -> float:
        """The mean; 0 before the first value."""
        return self.total / self.weight if self.weight else 0.0


@dataclass(slots=True)
class BlockFalls:
    """The blocks of one scale: the best mean, and squared falls from each to the next."""

    size: int
    count: int = 0
    best: float = -inf
    _falls: FadingMean = field(default_factory=FadingMean)
    _previous: float = 0.0
    _pending: deque[float] = field(default_factory=deque)

    def add(self, block: list[float], *, is_frozen: bool) -> None:
        """Add a complete block; its fall becomes part of the noise later, unless it is frozen."""
        total = sum(block)
        mean = total / self.size
        if self.count and not is_frozen:
            self._pending.append(max(0.0, self._previous - mean) ** 2)
            lag = max(1, MAX_PENDING_BLOCK_VALUES // self.size)
            while len(self._pending) > lag:
                self._falls.add(self._pending.popleft(), 1.0)
        self.best = max(self.best, (total - max(block)) / (self.size - 1))
        self._previous = mean
        self.count += 1

    def error(self, variance: float, inflation: float) -> float:
        """Standard error of a mean: that of values with `variance`, or that of earlier blocks.

        `inflation` is the factor on the variance of a long mean by correlation.
        """
        independent = variance * min(self.size, inflation) / self.size
        total = self._falls.total + PRIOR_BLOCKS * independent
        return sqrt(max(independent, total / (self._falls.weight + PRIOR_BLOCKS)))

    @property
    def best_of_many_bound(self) -> float:
        """Standard errors by which the best of as many means of noise exceeds their mean."""
        return sqrt(2.0 * log(self.count))


@dataclass(slots=True)
class MeanDrawdown:
    """Compares current with best means; while `is_frozen`, nothing becomes part of the noise.

    `recent` are the newest values, `start` is the mean of the first ones, `mean_before` that of all
    that are part of the noise.
    """

    count: int = 0
    start: float = 0.0
    mean_before: float = 0.0
    is_frozen: bool = False
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_VALUES))
    _scales: list[BlockFalls] = field(default_factory=lambda: [BlockFalls(x) for x in SCALES])
    _far: FadingMean = field(default_factory=FadingMean)
    """Squared falls over `CHANGE_LAG` values."""
    _near: FadingMean = field(default_factory=FadingMean)
    """Squared falls from one value to the next."""
    _far_total: float = 0.0
    _near_total: float = 0.0
    _pending: deque[tuple[float, float, float]] = field(default_factory=deque)
    _noise_groups: int = 0
    _lowest: float = inf
    _highest: float = -inf

    @property
    def best(self) -> float:
        """The best mean of the smallest scale; minus infinity before the first."""
        return self._scales[0].best

    def add(self, value: float) -> None:
        """Add a finite value."""
        recent = self.recent
        if recent and recent[-1] > value:
            self._near_total += (recent[-1] - value) ** 2
        if len(recent) >= CHANGE_LAG and recent[-CHANGE_LAG] > value:
            self._far_total += (recent[-CHANGE_LAG] - value) ** 2
        recent.append(value)
        self.count += 1
        if not self._lowest <= value <= self._highest:
            self._lowest, self._highest = min(self._lowest, value), max(self._highest, value)
        if self.count <= START_VALUES:
            self.start += (value - self.start) / self.count
        if self.count % SCALES[0] == 0:
            self._close_blocks()

    def _close_blocks(self) -> None:
        values = list(self.recent)
        for scale in self._scales:
            if self.count % scale.size:
                break
            scale.add(values[-scale.size :], is_frozen=self.is_frozen)
        if self.count % GROUP_VALUES:
            return
        mean = sum(values[-GROUP_VALUES:]) / GROUP_VALUES
        if not self.is_frozen:
            self._pending.append((self._far_total, self._near_total, mean))
            groups = self._noise_groups + len(self._pending)
            while len(self._pending) > min(MAX_PENDING_VALUES // GROUP_VALUES, groups // 2):
                self._add_noise(*self._pending.popleft())
        self._far_total = self._near_total = 0.0

    def _add_noise(self, far: float, near: float, mean: float) -> None:
        # The first group has no values of `CHANGE_LAG` before.
        if self._noise_groups:
            self._far.add(far, GROUP_VALUES)
        self._near.add(near, GROUP_VALUES)
        self._noise_groups += 1
        self.mean_before += (mean - self.mean_before) / self._noise_groups

    def _pending_far(self) -> float:
        """Bound of the noise by pending changes, which may have grown with a rise."""
        totals = [far for far, _, _ in self._pending][:-NEWEST_GROUPS]
        return PENDING_SHARE * sum(totals) / (len(totals) * GROUP_VALUES) if totals else 0.0

    def falls(self, least_correlation: float = 0.0) -> Iterator[Fall]:
        """The fall at every scale whose current mean is below the best, smallest scale first.

        None before the noise is known. `least_correlation` is a lower bound of the correlation of
        neighbours, which that of the changes over the lag does not show if it lasts longer.
        """
        weight = self._far.weight
        if weight < MIN_NOISE_WEIGHT:
            return
        values = list(self.recent)
        variance = max(self._far.mean, self._pending_far())
        variance *= (1.0 + (SMALL_SAMPLE / weight) ** 2) * ERROR_FACTOR**2
        correlation = max(0.0, 1.0 - self._near.mean / variance) if variance else 0.0
        correlation = max(correlation, least_correlation)
        inflation = (1.0 + correlation) / max(1e-9, 1.0 - correlation)
        # A change that did not occur before the latest values may have a share of 1 in all values.
        # The second largest counts, so that an outlier does not; no change exceeds the range.
        if (self._highest - self._lowest) ** 2 / self.count > variance and (
            (max(values) - min(values)) ** 2 / self.count > variance
        ):
            change = sorted(map(sub, values, values[1:]))[-2]
            variance = max(variance, max(0.0, change) ** 2 / self.count)
        # A swing that has grown at an equal mean is no fall: the changes of late bound the error.
        latest = values[-SWING_VALUES:]
        swing = sum([(a - b) ** 2 for a, b in pairwise(latest)]) / (2 * (len(latest) - 1))
        scales = [scale for scale in self._scales if scale.count >= 2]
        errors = [scale.error(variance, inflation) for scale in scales]
        has_gain = any(
            scale.best - self.start > scale.best_of_many_bound * error
            for scale, error in zip(scales, errors, strict=True)
        )
        for scale, error in zip(scales, errors, strict=True):
            last = values[-scale.size :]
            current = (sum(last) - min(last)) / (scale.size - 1)
            if not error or current >= scale.best:
                continue
            larger_error = max(error, sqrt(swing * min(scale.size, inflation) / scale.size))
            if scale.size < SCALES[-1]:
                # What is usual of late is no fall, however high the best mean.
                earlier = values[-scale.size - max(16, 2 * scale.size) : -scale.size]
                level = sum(earlier) / len(earlier) if earlier else current
                if level - current < RECENT_ERRORS * larger_error:
                    continue
            gain = max(0.0, scale.best - self.start) if has_gain else 0.0
            below = scale.best - scale.best_of_many_bound * error if gain else self.mean_before
            yield Fall(
                scale=scale.size,
                best=scale.best,
                current=current,
                errors=(below - current) / larger_error,
                gain=gain,
                latest=last,
            )
