"""Estimates where a change in a signal began, by change-point search with ruptures.

Binary segmentation splits the values into straight lines; the split next to the onset that the
detector reported, and the lines on both sides of it, are examined alone. There a level that goes to
another one in a step or a ramp, a line with a step, and a line with a bend are fitted with the
change at each value. The best fit is the onset, the places that fit nearly as well are its
interval. If no change is clearly better than none, there is no estimate.

numpy and ruptures would occupy memory of the agent: it estimates in another process.

Source: Bai 1997, "Estimating multiple breaks one at a time" (binary segmentation); Schwarz 1978
(cost of a parameter).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from sentinel.model.incident import Onset
from sentinel.pipeline.ruptures_search import Binseg

POINTS_BEFORE_ONSET = 96
"""Points before the onset that the detector reported: the healthy level."""
MIN_SEGMENT_POINTS = 3
"""Smallest number of points in a segment; of a new level one is enough."""
MAX_EARLIER_POINTS, MAX_LATER_POINTS = 24, 4
"""Points by which a change is before, or after, the onset that the detector reported; one farther
away is another change. On labelled runs detectors report it up to 24 points late."""
RAMP_POINTS = (4, 8, 16)
"""Points within which a signal goes from one level to another, besides a step."""
SPIKE_NOISE_WIDTHS = 6.0
"""Noise widths from both neighbors beyond which a value is ignored: one spike is no change."""
MIN_NOISE = 1e-100
"""Least noise of values of which the largest is about 1: a value divided by it can be squared."""
SPLIT_PENALTY = 9.0
"""Cost of a split in the search, times the logarithm of the number of values: three times that of
its three parameters, since noise is correlated."""
INTERVAL_COST_MARGIN = 10.0
"""Cost above that of the best place (twice the log-likelihood) up to which one is in the interval.

`benchmarks/onsets.py` measures how often the interval contains the true onset."""
MIN_COST_IMPROVEMENT = 12.0
"""Improvement of the best change over none that is required, net of its parameters."""

_Array = np.ndarray[Any, np.dtype[np.float64]]
_Indices = np.ndarray[Any, np.dtype[np.int_]]


def estimate_onset(points: Sequence[tuple[int, float]], suspected_step: int) -> Onset | None:
    """The onset of the change in a signal; None if there is no clear change.

    `points` are steps and finite values in order, up to the opening of the incident;
    `suspected_step` is the onset that the detector reported.
    """
    suspected = sum(step < suspected_step for step, _ in points)
    first = max(0, suspected - POINTS_BEFORE_ONSET)
    steps, suspected = [step for step, _ in points[first:]], suspected - first
    values = _scale_by_noise([value for _, value in points[first:]])
    start, end = _isolate_change(values, suspected)
    found = _best_change(values[start:end])
    if found is None:
        return None
    best, earliest, latest = (start + at for at in found)
    if not -MAX_EARLIER_POINTS <= best - suspected <= MAX_LATER_POINTS:
        return None
    return Onset(steps[best], steps[earliest], steps[latest])


def _scale_by_noise(raw: Sequence[float]) -> _Array:
    """Values in units of their noise; their logarithms if they span a factor above 3."""
    values = np.array(raw, dtype=float)
    if values.min() > 0 and values.max() > 3 * values.min():
        values = np.log(values)
    # Differences and squares must not overflow; a power of two changes no digit.
    values = np.ldexp(values, -np.frexp(np.abs(values).max())[1])
    steps = np.diff(values)
    noise = float(np.median(np.abs(steps - np.median(steps)))) / 0.6745 / 2**0.5
    noise = max(noise or float(np.std(values)) * 1e-3 or 1.0, MIN_NOISE)
    inner = np.median([values[:-2], values[1:-1], values[2:]], axis=0)
    spikes = np.abs(values[1:-1] - inner) > SPIKE_NOISE_WIDTHS * noise
    values[1:-1][spikes] = inner[spikes]
    scaled: _Array = (values - values.mean()) / noise
    return scaled


def _isolate_change(values: _Array, suspected: int) -> tuple[int, int]:
    """Start and end of the two segments around the split next to the suspected one."""
    n = len(values)
    search = Binseg(model="linear", min_size=MIN_SEGMENT_POINTS, jump=1)
    signal = np.column_stack([values, _line_columns(n)])
    bounds = [0, *search.fit_predict(signal, pen=SPLIT_PENALTY * log(n))]
    near = [
        at
        for at in range(1, len(bounds) - 1)
        if -MAX_EARLIER_POINTS <= bounds[at] - suspected <= MAX_LATER_POINTS
    ]
    if not near:
        return max(bound for bound in bounds if bound <= max(0, suspected - MAX_EARLIER_POINTS)), n
    split = min(near, key=lambda at: abs(bounds[at] - suspected))
    return bounds[split - 1], bounds[split + 1]


@dataclass(frozen=True, slots=True)
class _Model:
    """Cost of one kind of change: without it, with the best one, and with one at each place."""

    cost_without: float
    best_cost: float
    places: _Indices
    costs: _Array


def _best_change(values: _Array) -> tuple[int, int, int] | None:
    """The index of the best change, and of the first and last that fit nearly as well."""
    if len(values) < 2 * MIN_SEGMENT_POINTS:
        return None
    models = list(_fit_models(values))
    best = min(models, key=lambda model: model.best_cost)
    # The noise around the best fit: tails heavier than normal widen the interval.
    noise = max(1.0, float(best.costs.min()) / len(values))
    if min(each.cost_without for each in models) - best.best_cost < MIN_COST_IMPROVEMENT * noise:
        return None
    near_best = np.concatenate(
        [
            model.places[model.costs <= model.costs.min() + INTERVAL_COST_MARGIN * noise]
            for model in models
            if model.best_cost - best.best_cost <= MIN_COST_IMPROVEMENT * noise
        ]
    )
    return int(best.places[best.costs.argmin()]), int(near_best.min()), int(near_best.max())


def _fit_models(values: _Array) -> Iterator[_Model]:
    n = len(values)
    at, line = np.arange(n), _line_columns(n)
    places = np.arange(MIN_SEGMENT_POINTS, n)
    step = (at[:, None] >= places).astype(float)
    yield _fit_model(values, line[:, 1:], places, step)
    for width in RAMP_POINTS:
        ramp = np.clip((at[:, None] - places + 1) / width, 0.0, 1.0)
        yield _fit_model(values, line[:, 1:], places, ramp, own_parameters=3)
    inner = places <= n - MIN_SEGMENT_POINTS
    bend = np.maximum(at[:, None] - places + 1, 0).astype(float)
    for change in (step, bend):
        yield _fit_model(values, line, places[inner], change[:, inner])


def _fit_model(
    values: _Array, base: _Array, places: _Indices, changes: _Array, own_parameters: int = 2
) -> _Model:
    """Least squares with the columns of `base`, and with each column of `changes` besides.

    A place costs as much as a parameter.
    """
    n, parameters = base.shape
    orthonormal, _ = np.linalg.qr(base)
    residual = values - orthonormal @ (orthonormal.T @ values)
    extra = changes - orthonormal @ (orthonormal.T @ changes)
    cost = float(residual @ residual)
    costs = cost - (extra.T @ residual) ** 2 / np.einsum("ij,ij->j", extra, extra)
    best_cost = float(costs.min()) + (parameters + own_parameters) * log(n)
    return _Model(cost + parameters * log(n), best_cost, places, costs)


def _line_columns(n: int) -> _Array:
    return np.column_stack([np.arange(n) / n, np.ones(n)])
