"""Estimates the onset of an incident by change-point detection with ruptures.

A detector reports the onset that it could see at the time. The values up to the opening of the
incident allow a better estimate: the window is cut in two where two levels, two straight lines, or
one line with a bend fit best; the cuts that fit nearly as well are the interval. If no cut is
clearly better than none, there is no estimate. ruptures takes seconds to import, so it is imported
at the first estimate; the agent estimates in another process.
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
"""Points of a signal that are used: the last before the incident opened."""
POINTS_BEFORE_ONSET = 96
"""Points among these before the onset that the detector reported: the healthy level."""
MIN_POINTS = 12
"""Points below which there is no estimate."""
MIN_SEGMENT_POINTS = 3
"""Smallest number of points in a segment."""
SPIKE_NOISE_WIDTHS = 6.0
"""Noise widths from both neighbors beyond which a value is ignored: one spike is no change."""
INTERVAL_COST_MARGIN = 10.0
"""Cost above that of the best cut (twice the log-likelihood) up to which a cut is in the interval.

For synthetic steps, ramps and exponential growth of 40 points, the interval covers the true onset
in 98 % of the cases."""
MIN_COST_IMPROVEMENT = 12.0
"""Improvement of the best cut over no cut that is required, net of its parameters."""


@dataclass
class RecentSignals:
    """The newest values of `signals`, from which onsets are estimated."""

    signals: Collection[str]
    points: dict[str, deque[tuple[int, float]]] = field(default_factory=dict)
    checkpoint_steps: deque[int] = field(
        default_factory=lambda: deque(maxlen=MAX_CHECKPOINTS_PER_RUN)
    )

    def update(self, record: Record) -> None:
        """Add the values and the checkpoint of a record of the whole run."""
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
        """The onset of an incident that has just opened."""
        return estimate_incident_onset(
            incident, tuple(self.points.get(incident.signal, ())), self.checkpoint_steps
        )


def estimate_incident_onset(
    incident: Incident, points: Sequence[tuple[int, float]], checkpoint_steps: Iterable[int]
) -> Onset | None:
    """The onset of an incident with the last checkpoint before it. See `estimate_onset`.

    None for a finding with a signal of its own: ranks that differ do not show in the run's value.
    """
    if incident.finding.signal:
        return None
    onset = estimate_onset(points, incident.onset_step)
    if onset is None:
        return None
    return replace(onset, last_good_step=last_checkpoint_before(onset.earliest, checkpoint_steps))


def estimate_onset(points: Sequence[tuple[int, float]], suspected_step: int) -> Onset | None:
    """The onset of the change in a signal; None if there is no clear change.

    `points` are steps and values in order, up to the opening of the incident; `suspected_step` is
    the onset that the detector reported.
    """
    recent = points[-WINDOW_POINTS:]
    suspected = [at for at, (step, _) in enumerate(recent) if step >= suspected_step]
    if any(not isfinite(recent[at][1]) for at in suspected):
        # A value that is not finite is itself the onset, which the detector knows.
        return None
    first = suspected[0] if suspected else len(recent)
    known = [point for point in recent[max(0, first - POINTS_BEFORE_ONSET) :] if isfinite(point[1])]
    if len(known) < MIN_POINTS:
        return None
    cut_indices = _best_cut([value for _, value in known])
    if cut_indices is None:
        return None
    best, earliest, latest = (known[at][0] for at in cut_indices)
    return Onset(best, earliest, latest)


def _best_cut(values: Sequence[float]) -> tuple[int, int, int] | None:
    """The index of the best cut, and of the first and last that fit nearly as well."""
    scaled = _scale_by_noise(values)
    n = len(scaled)
    models = [
        _fit_cut_model(_level_cost(scaled), 1, n),
        _fit_cut_model(_line_cost(scaled), 2, n),
        _bend_model(scaled),
    ]
    best = min(models, key=lambda model: model.best_cost)
    # The noise around the best fit: tails heavier than normal widen the interval.
    noise = max(1.0, min(best.cut_costs) / n)
    if (min(model.uncut_cost for model in models) - best.best_cost) / noise < MIN_COST_IMPROVEMENT:
        return None
    near_best = [
        at
        for model in models
        if (model.best_cost - best.best_cost) / noise <= MIN_COST_IMPROVEMENT
        for at, cost in enumerate(model.cut_costs, MIN_SEGMENT_POINTS)
        if (cost - min(model.cut_costs)) / noise <= INTERVAL_COST_MARGIN
    ]
    return (
        best.cut_costs.index(min(best.cut_costs)) + MIN_SEGMENT_POINTS,
        min(near_best),
        max(near_best),
    )


@dataclass(frozen=True, slots=True)
class _CutModel:
    """Cost of one model of the window: without a cut, with the best one, and with each."""

    uncut_cost: float
    best_cost: float
    cut_costs: list[float]


def _fit_cut_model(segment_cost: Callable[[int, int], float], parameters: int, n: int) -> _CutModel:
    cut_costs = [
        segment_cost(0, at) + segment_cost(at, n)
        for at in range(MIN_SEGMENT_POINTS, n - MIN_SEGMENT_POINTS + 1)
    ]
    uncut_cost = segment_cost(0, n) + parameters * log(n)
    return _CutModel(uncut_cost, min(cut_costs) + (2 * parameters + 1) * log(n), cut_costs)


def _scale_by_noise(values: Sequence[float]) -> np.ndarray[Any, Any]:
    """Values in units of their noise; their logarithms if they span a factor above 3."""
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
    """Cost of fitting a segment by a constant."""
    from ruptures.costs import CostL2  # noqa: PLC0415 - slow to load

    cost = CostL2().fit(values.reshape(-1, 1))
    return lambda start, end: float(cost.error(start, end))


def _line_cost(values: np.ndarray[Any, Any]) -> Callable[[int, int], float]:
    """Cost of fitting a segment by a straight line."""
    return _regression_cost(values, _line_columns(len(values)))


def _bend_model(values: np.ndarray[Any, Any]) -> _CutModel:
    """A line that bends at the cut, for growth without a jump."""
    import numpy as np  # noqa: PLC0415 - with ruptures

    n = len(values)
    line = _line_columns(n)
    bend_columns = (
        np.maximum(line[:, :1] - at / n, 0.0)
        for at in range(MIN_SEGMENT_POINTS, n - MIN_SEGMENT_POINTS + 1)
    )
    cut_costs = [
        _regression_cost(values, np.hstack([line, bend_column]))(0, n)
        for bend_column in bend_columns
    ]
    return _CutModel(
        _regression_cost(values, line)(0, n) + 2 * log(n), min(cut_costs) + 4 * log(n), cut_costs
    )


def _line_columns(n: int) -> np.ndarray[Any, Any]:
    import numpy as np  # noqa: PLC0415 - with ruptures

    return np.column_stack([np.arange(n) / n, np.ones(n)])


def _regression_cost(
    values: np.ndarray[Any, Any], columns: np.ndarray[Any, Any]
) -> Callable[[int, int], float]:
    """Cost of fitting a segment by a linear combination of these columns."""
    import numpy as np  # noqa: PLC0415 - with ruptures
    from ruptures.costs import CostLinear  # noqa: PLC0415 - slow to load

    cost = CostLinear().fit(np.column_stack([values, columns]))
    return lambda start, end: float(np.sum(cost.error(start, end)))
