"""Onset: where in its recent past a signal began to go wrong, by segmenting it with ruptures.

Detectors say when they began to doubt. Looking back from the moment an incident opened one can do
better: the window is cut in two where two levels, two straight lines, or one line with a bend
explain it best, and the cuts that explain it nearly as well are the interval. Where no cut is
clearly better than none, nothing is said. ruptures takes seconds to load, so it is loaded when the
first incident is dated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, log
from typing import TYPE_CHECKING, Any

from sentinel.model.incident import Incident, Onset
from sentinel.model.record import Event, Record
from sentinel.pipeline.incidents import MAX_CHECKPOINTS_PER_RUN, last_checkpoint_before

if TYPE_CHECKING:
    import numpy as np

WINDOW_POINTS = 256
"""Points of a signal that are looked at, the last before its incident opened."""
POINTS_BEFORE_ONSET = 96
"""Of these, points before the detector's own onset: enough to know how it was when it was well."""
MIN_POINTS = 12
"""Points below which nothing is said."""
MIN_SEGMENT_POINTS = 3
"""Points a segment has at least."""
SPIKE_NOISE_WIDTHS = 6.0
"""Noise widths from both its neighbours at which a value counts no more: one spike is no change."""
INTERVAL_COST_MARGIN = 10.0
"""How much worse than the best cut another may be (twice the log-likelihood) to be in the interval;
of 40 points of a synthetic step, ramp or exponential growth, 98 % of the true ones lie within."""
MIN_COST_IMPROVEMENT = 12.0
"""How much better than no cut the best one must be, beyond what its parameters cost."""


@dataclass
class RecentSignals:
    """The recent past of `signals`, gathered from the run's records, to date incidents by."""

    signals: Collection[str]
    points: dict[str, deque[tuple[int, float]]] = field(default_factory=dict)
    checkpoint_steps: deque[int] = field(
        default_factory=lambda: deque(maxlen=MAX_CHECKPOINTS_PER_RUN)
    )

    def update(self, record: Record) -> None:
        """Take over what a record of the whole run says."""
        if record.event is Event.SAVE:
            self.checkpoint_steps.append(record.step)
        values, step = record.values, record.step
        for signal in self.signals:
            if signal not in values:
                continue
            if signal not in self.points:
                self.points[signal] = deque(maxlen=WINDOW_POINTS)
            self.points[signal].append((step, values[signal]))

    def estimate_onset(self, incident: Incident) -> Onset | None:
        """When the incident, which opened just now, began."""
        return estimate_incident_onset(
            incident, tuple(self.points.get(incident.signal, ())), self.checkpoint_steps
        )


def estimate_incident_onset(
    incident: Incident, points: Sequence[tuple[int, float]], checkpoint_steps: Iterable[int]
) -> Onset | None:
    """When the incident began, and the last checkpoint that is surely older. See `date`."""
    found = estimate_onset(points, incident.onset_step)
    if found is None:
        return None
    return replace(found, last_good_step=last_checkpoint_before(found.earliest, checkpoint_steps))


def estimate_onset(points: Sequence[tuple[int, float]], suspected_step: int) -> Onset | None:
    """When the signal began to go wrong; None where that cannot be told.

    `points` are its steps and values, in order, up to where the incident opened; `doubted` is the
    step at which the detector's own doubt began.
    """
    recent = points[-WINDOW_POINTS:]
    since = [at for at, (step, _) in enumerate(recent) if step >= suspected_step]
    if any(not isfinite(recent[at][1]) for at in since):
        # What is not a number began where the detector says.
        return None
    first = since[0] if since else len(recent)
    known = [point for point in recent[max(0, first - POINTS_BEFORE_ONSET) :] if isfinite(point[1])]
    if len(known) < MIN_POINTS:
        return None
    found = _best_cut([value for _, value in known])
    if found is None:
        return None
    best, earliest, latest = (known[at][0] for at in found)
    return Onset(best, earliest, latest)


def _best_cut(values: Sequence[float]) -> tuple[int, int, int] | None:
    """The best place to cut, and the first and last that are nearly as good."""
    scaled = _scale_by_noise(values)
    n = len(scaled)
    ways = [
        _fit_cut_model(_level_cost(scaled), 1, n),
        _fit_cut_model(_line_cost(scaled), 2, n),
        _bend_model(scaled),
    ]
    best = min(ways, key=lambda way: way.best_cost)
    # The noise as it is about the best fit: heavier tails than normal make the interval wider.
    noise = max(1.0, min(best.cut_costs) / n)
    if (min(way.uncut_cost for way in ways) - best.best_cost) / noise < MIN_COST_IMPROVEMENT:
        return None
    near = [
        at
        for way in ways
        if (way.best_cost - best.best_cost) / noise <= MIN_COST_IMPROVEMENT
        for at, cost in enumerate(way.cut_costs, MIN_SEGMENT_POINTS)
        if (cost - min(way.cut_costs)) / noise <= INTERVAL_COST_MARGIN
    ]
    return best.cut_costs.index(min(best.cut_costs)) + MIN_SEGMENT_POINTS, min(near), max(near)


@dataclass(frozen=True, slots=True)
class _CutModel:
    """One way to explain a window: what it costs uncut, cut at the best place, and at each."""

    uncut_cost: float
    best_cost: float
    cut_costs: list[float]


def _fit_cut_model(segment_cost: Callable[[int, int], float], parameters: int, n: int) -> _CutModel:
    cuts = [
        segment_cost(0, at) + segment_cost(at, n)
        for at in range(MIN_SEGMENT_POINTS, n - MIN_SEGMENT_POINTS + 1)
    ]
    uncut = segment_cost(0, n) + parameters * log(n)
    return _CutModel(uncut, min(cuts) + (2 * parameters + 1) * log(n), cuts)


def _scale_by_noise(values: Sequence[float]) -> np.ndarray[Any, Any]:
    """Values in widths of their noise; by their logarithm where they span magnitudes."""
    import numpy as np  # noqa: PLC0415 - with ruptures

    y = np.array(values, dtype=float)
    if y.min() > 0 and y.max() > 3 * y.min():
        y = np.log(y)
    steps = np.diff(y)
    noise = float(np.median(np.abs(steps - np.median(steps)))) / 0.6745 / 2**0.5
    noise = noise or float(np.std(y)) * 1e-3 or 1.0
    inner = np.median([y[:-2], y[1:-1], y[2:]], axis=0)
    spikes = np.abs(y[1:-1] - inner) > SPIKE_NOISE_WIDTHS * noise
    y[1:-1][spikes] = inner[spikes]
    scaled: np.ndarray[Any, Any] = (y - y.mean()) / noise
    return scaled


def _level_cost(values: np.ndarray[Any, Any]) -> Callable[[int, int], float]:
    """What it costs to take a stretch for one level."""
    from ruptures.costs import CostL2  # noqa: PLC0415 - slow to load

    cost = CostL2().fit(values.reshape(-1, 1))
    return lambda start, end: float(cost.error(start, end))


def _line_cost(values: np.ndarray[Any, Any]) -> Callable[[int, int], float]:
    """What it costs to take a stretch for one straight line."""
    return _regression_cost(values, _line_columns(len(values)))


def _bend_model(values: np.ndarray[Any, Any]) -> _CutModel:
    """One line that bends at the cut: what grows from nothing has no step."""
    import numpy as np  # noqa: PLC0415 - with ruptures

    n = len(values)
    straight = _line_columns(n)
    bends = (
        np.maximum(straight[:, :1] - at / n, 0.0)
        for at in range(MIN_SEGMENT_POINTS, n - MIN_SEGMENT_POINTS + 1)
    )
    cuts = [_regression_cost(values, np.hstack([straight, bend]))(0, n) for bend in bends]
    return _CutModel(
        _regression_cost(values, straight)(0, n) + 2 * log(n), min(cuts) + 4 * log(n), cuts
    )


def _line_columns(n: int) -> np.ndarray[Any, Any]:
    import numpy as np  # noqa: PLC0415 - with ruptures

    return np.column_stack([np.arange(n) / n, np.ones(n)])


def _regression_cost(
    values: np.ndarray[Any, Any], columns: np.ndarray[Any, Any]
) -> Callable[[int, int], float]:
    """What it costs to explain a stretch by the best combination of these columns."""
    import numpy as np  # noqa: PLC0415 - with ruptures
    from ruptures.costs import CostLinear  # noqa: PLC0415 - slow to load

    cost = CostLinear().fit(np.column_stack([values, columns]))
    return lambda start, end: float(np.sum(cost.error(start, end)))
