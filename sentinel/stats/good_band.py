"""The band in which the course of a run stays that is like some good runs, and where one leaves it.

Formula, for each of at most 128 cells of the steps that all runs have
    course    = mean over the good runs of their smoothed values
    prior^2   = error of the smoothed values^2 + (0.12 noise of a value)^2
    scale^2   = (k prior^2 + (n - 1) spread^2) / (k + n - 1), with k = 4
    tolerance = (0.05 travel + change of the course in 10 % of the steps) k / (k + n - 1)
    band      = course +- (t sqrt(1 + 1/n) scale + tolerance)

`spread` is the standard deviation between the good runs, `n` their number, `travel` the range of
the course up to the cell, and `t` the quantile of Student's distribution with k + n - 1 degrees of
freedom. One good run does not show how runs of other seeds differ: its band is that of its own
noise, about 2.5 standard deviations of a value, with a tolerance for runs that are a little
faster or slower. With every further good run their spread counts more. A run departs where its
smoothed values are outside for a while; the first step is where they left the middle of the band
before.

Sources: local regression, Cleveland, JASA 1979; the prediction interval of a further observation,
Hahn & Meeker, "Statistical Intervals", section 4.7; the pooled variance with a prior, Smyth,
Stat. Appl. Genet. Mol. Biol. 3(1), 2004. The constants are set so that runs that differ in nothing
but the seed do not depart (`benchmarks/departures.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np

from sentinel.stats.neighbour_correlation import neighbour_correlation
from sentinel.stats.student_t import two_sided_quantile

MAX_CELLS, MIN_CELLS = 128, 12
PRIOR_RUNS = 4
"""Good runs that the prior of the spread counts for."""
NOISE_SHARE = 0.05
"""Prior of the standard deviation between courses, in that of a single value."""
TRAVEL_SHARE = 0.05
"""Prior of the difference between courses, as a share of the distance that they travelled."""
SPEED_SHARE = 0.1
"""Share of the steps by which a good run may be faster or slower."""
MIN_SPEED_CELLS = 2.0
"""Cells by which it may be so at the start, where networks differ by how they were initialised."""
TAIL = 5e-5
"""Probability that a good run is outside in one cell: there are dozens of signals and cells."""
MIN_RELATIVE = 0.01
"""Least half width of a band, as a share of the level."""
CLEAR_RATIO = 1.2
"""Half widths that the farthest value outside is away from the course."""
INNER_SHARE = 0.5
"""Share of the half width up to which a run is in the middle of the band."""

_SMOOTHING_SHARE, _NOISE_WINDOW_SHARE = 0.05, 0.2
_MIN_DEPARTED_SHARE, _MIN_DEPARTED_CELLS = 0.03, 3
_LOG_RATIO, _MAX_LOG_RATIO = 3.0, 1e9
_MAX_VALUE = 1e100
_MAD_TO_SD, _SD_SHARE = 1.4826, 0.3

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Curve:
    """Values of one run by step, both finite, the steps rising."""

    steps: Array
    values: Array


@dataclass(frozen=True, slots=True)
class Departure:
    """Where a run left the band: its step, the bounds and its smoothed value one cell outside.

    `sign` is +1 above and -1 below the band.
    """

    step: float
    low: float
    high: float
    value: float
    sign: int


@dataclass(frozen=True, slots=True)
class GoodBand:
    """The band of some good runs over cells of equal width between `edges`.

    `course` and `half_width` are of values divided by `unit`, with `is_log` of their logarithms.
    """

    edges: Array
    course: Array
    half_width: Array
    unit: float
    is_log: bool

    def departure(self, curve: Curve) -> Departure | None:
        """Where the run of that curve leaves the band; None if it does not."""
        cells = _cells(_scaled(curve, self.unit, is_log=self.is_log), self.edges)
        known = ~np.isnan(cells)
        count = int(known.sum())
        if count < MIN_CELLS // 2:
            return None
        smoothed = np.full(len(cells), np.nan)
        smoothed[known] = _smoothed(cells[known])
        distance = smoothed - self.course
        start = _first_stay((distance / self.half_width)[known])
        if start is None:
            return None
        start = int(np.flatnonzero(known)[start])
        sign = int(np.sign(distance[start]))
        first = start
        while first > 0 and sign * distance[first - 1] > INNER_SHARE * self.half_width[first - 1]:
            first -= 1
        bounds = self.course[start] + self.half_width[start] * np.array([-1.0, 1.0])
        low, high, value = self._unscaled(np.array([*bounds, smoothed[start]]))
        return Departure(float(self.edges[first]), low, high, value, sign)

    def _unscaled(self, values: Array) -> list[float]:
        return [self.unit * float(each) for each in (np.exp(values) if self.is_log else values)]


def good_band(
    curves: Sequence[Curve], last_step: float, level_share: float = 0.0
) -> GoodBand | None:
    """The band of the good runs up to `last_step`.

    `level_share` is the prior of how far courses differ at any time, as a share of the level.
    None with too few values, and for a signal that is 0 all the time, of which no band is known.
    """
    first = max(curve.steps[0] for curve in curves)
    last = min(last_step, *(float(curve.steps[-1]) for curve in curves))
    inside = [int(((curve.steps >= first) & (curve.steps <= last)).sum()) for curve in curves]
    count = min(MAX_CELLS, *inside)
    if count < MIN_CELLS or last <= first:
        return None
    edges = np.linspace(first, last, count + 1)
    values = np.concatenate([curve.values for curve in curves])
    unit = float(np.abs(values).max())
    if not unit:
        return None
    ratio = values.max() / values.min() if values.min() > 0 else 0.0
    is_log = bool(_LOG_RATIO < ratio < _MAX_LOG_RATIO)
    scaled = [_scaled(curve, unit, is_log=is_log) for curve in curves]
    cells = np.array([_filled(_cells(curve, edges)) for curve in scaled])
    smoothed = np.array([*map(_smoothed, cells)])
    course = smoothed.mean(axis=0)
    noise = np.array([_noise(*each, edges) for each in zip(scaled, smoothed, strict=True)])
    error = np.mean([*map(_error_variance, cells, smoothed)], axis=0)
    degrees = PRIOR_RUNS + len(curves) - 1
    spread = smoothed.var(axis=0, ddof=1) if len(curves) > 1 else np.zeros(count)
    spread = np.maximum(_wide_mean(spread - error), 0.0)
    prior = (NOISE_SHARE * noise).mean(axis=0) ** 2
    between = (PRIOR_RUNS * prior + (len(curves) - 1) * spread) / degrees
    travel = np.maximum.accumulate(course) - np.minimum.accumulate(course)
    level = np.ones(count) if is_log else np.abs(course)
    tolerance = TRAVEL_SHARE * travel + _change(course) + level_share * np.maximum(level, travel)
    tolerance *= (PRIOR_RUNS / degrees) ** 2
    quantiles = NormalDist().inv_cdf(1 - TAIL / 2), two_sided_quantile(TAIL, degrees)
    chance = quantiles[0] ** 2 * error + quantiles[1] ** 2 * between
    half_width = np.sqrt((1 + 1 / len(curves)) * chance) + tolerance
    half_width = np.maximum(half_width, MIN_RELATIVE * level)
    return GoodBand(edges, course, half_width, unit, is_log) if half_width.min() > 0 else None


def _scaled(curve: Curve, unit: float, *, is_log: bool) -> Curve:
    """The curve in that unit, which no value exceeds by a factor whose square overflows."""
    values = np.clip(curve.values / unit, -_MAX_VALUE, _MAX_VALUE)
    if is_log:
        values = np.log(np.maximum(values, 1 / _MAX_VALUE))
    return Curve(curve.steps, values)


def _cells(curve: Curve, edges: Array) -> Array:
    """The median of the values in each cell, NaN without any."""
    places = _places(curve, edges)
    return _medians(curve.values, places, len(edges) - 1)


def _noise(curve: Curve, course: Array, edges: Array) -> Array:
    """The standard deviation of a single value around the course of its run, at each cell."""
    residuals = np.abs(curve.values - np.interp(curve.steps, (edges[:-1] + edges[1:]) / 2, course))
    places = _places(curve, edges)
    size = _MAD_TO_SD * _filled(_medians(residuals, places, len(course)))
    # A series of rare events has a median of 0.
    inside = residuals[(places >= 0) & (places < len(course))]
    return np.maximum(_wide_mean(size), _SD_SHARE * float(np.sqrt(np.mean(inside**2))))


def _places(curve: Curve, edges: Array) -> Any:
    """The cell of each value; -1 before the first, and their number after the last."""
    places = np.searchsorted(edges, curve.steps, side="right") - 1
    return np.where(curve.steps == edges[-1], len(edges) - 2, places)


def _medians(values: Array, places: Any, count: int) -> Array:
    parts = np.split(values, np.searchsorted(places, np.arange(count + 1)))[1:-1]
    return np.array([np.median(part) if len(part) else np.nan for part in parts])


def _smoothed(cells: Array) -> Array:
    """Running medians of three, so that a spike moves nothing, smoothed by local regression."""
    padded = np.pad(cells, 1, mode="edge")
    medians = np.median([padded[:-2], padded[1:-1], padded[2:]], axis=0)
    smoothed: Array = _smoother(len(cells)) @ medians
    return smoothed


def _filled(cells: Array) -> Array:
    """The cells with those that have no value interpolated."""
    known = np.flatnonzero(~np.isnan(cells))
    return np.interp(np.arange(len(cells)), known, cells[known])


def _error_variance(cells: Array, smoothed: Array) -> Array:
    """The variance of the smoothed values that the noise of the run makes."""
    residuals = cells - smoothed
    correlation = neighbour_correlation([float(each) for each in residuals])
    inflation = (1 + correlation) / (1 - correlation)
    variance: Array = (
        _wide_mean(residuals**2) * inflation * (_smoother(len(cells)) ** 2).sum(axis=1)
    )
    return variance


def _change(course: Array) -> Array:
    """How much the course changes while a run gains or loses `SPEED_SHARE` of its steps."""
    at = np.arange(len(course)) + 0.5
    gain = np.maximum(SPEED_SHARE * at, MIN_SPEED_CELLS)
    change: Array = np.max(
        [np.abs(np.interp(at + sign * gain, at, course) - course) for sign in (-1, 1)], axis=0
    )
    return change


def _first_stay(ratios: Array) -> int | None:
    """The first cell from which on the run is outside on one side for a while, and clearly.

    `ratios` are distances from the course in half widths of the band.
    """
    needed = max(_MIN_DEPARTED_CELLS, round(_MIN_DEPARTED_SHARE * len(ratios)))
    sides = np.where(np.abs(ratios) > 1, np.sign(ratios), 0)
    ends = [*(np.flatnonzero(np.diff(sides)) + 1), len(sides)]
    start = 0
    for end in ends:
        is_clear = np.abs(ratios[start:end]).max() >= CLEAR_RATIO
        if sides[start] and end - start >= needed and is_clear:
            return start
        start = int(end)
    return None


def _wide_mean(values: Array) -> Array:
    size = max(1, round(_NOISE_WINDOW_SHARE * len(values)) // 2 * 2 + 1)
    padded = np.pad(values, size // 2, mode="reflect")
    mean: Array = np.convolve(padded, np.ones(size) / size, mode="valid")
    return mean


@cache
def _smoother(count: int) -> Array:
    """The matrix of local linear regression with tricube weights over so many cells."""
    at = np.arange(count, dtype=float)
    width = max(2.0, _SMOOTHING_SHARE * count) + 1.0
    offsets = at[None, :] - at[:, None]
    weights = np.clip(1 - np.abs(offsets / width) ** 3, 0, None) ** 3
    sums = [(weights * offsets**power).sum(axis=1) for power in range(3)]
    numerator = weights * (sums[2][:, None] - offsets * sums[1][:, None])
    matrix: Array = numerator / (sums[0] * sums[2] - sums[1] ** 2)[:, None]
    return matrix
