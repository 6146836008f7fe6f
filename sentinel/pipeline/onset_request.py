"""The newest values of the signals of a run, from which the onset of an incident is estimated.

It needs no numerical library: the agent only collects values, and another process estimates.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite

from sentinel.model.incident import Incident, Onset
from sentinel.model.record import HEARTBEAT, STAGE, TRAINING, Record
from sentinel.pipeline.recent_points import RecentPoints

WINDOW_POINTS = 256
"""Points of a signal that are stored."""
MIN_POINTS = 12
"""Points below which there is no estimate."""

_SPECIAL_EVENTS = frozenset({HEARTBEAT, STAGE, TRAINING})

Points = tuple[tuple[int, float], ...]
OnsetEstimator = Callable[[Points, int], Onset | None]
"""Takes steps and finite values in order, and the step at which the detector dates the onset."""


@dataclass(frozen=True, slots=True)
class OnsetRequest:
    """An incident whose onset is to be estimated from these values.

    `suspected_step` is the onset that its detector reported, `checkpoint_steps` are the steps of
    the checkpoints that were known when the incident opened, the oldest first.
    """

    incident: str
    suspected_step: int
    points: Points
    checkpoint_steps: tuple[int, ...] = ()


@dataclass
class RecentSignals:
    """The newest values of `signals`, by signal; `last_step` is their highest step."""

    signals: Collection[str]
    last_step: int | None = None
    _recent: RecentPoints = field(default_factory=lambda: RecentPoints(WINDOW_POINTS))

    @property
    def points(self) -> Mapping[str, deque[tuple[int, float]]]:
        """Steps and values of each signal that has any."""
        return self._recent.read()

    def split_rows(self) -> None:
        """Store what was added in few plain values, as before a snapshot."""
        self._recent.read()

    def update(self, record: Record, names: tuple[str, ...] | None = None) -> None:
        """Add the values of a record of the whole run.

        `names` are those of `signals` that it has, if they are known. Another training or stage has
        no values yet. Values of later steps are dropped: the run continues from an earlier one.
        Values of heartbeats belong to a time and not to a step.
        """
        if record.event in _SPECIAL_EVENTS:
            if record.event is HEARTBEAT:
                return
            self._recent.clear()
            self.last_step = None
        if names is None:
            names = tuple(self.signals & record.values.keys())
        step, last_step = record.step, self.last_step
        if last_step is None or step > last_step:
            self.last_step = step
        else:
            self._drop_from(step, names)
        self._recent.add(step, record.values, names)

    def _drop_from(self, step: int, names: Iterable[str]) -> None:
        """Drop the points of these signals at this step and later ones."""
        by_signal = self.points
        for name in names:
            points = by_signal.get(name)
            while points and points[-1][0] >= step:
                points.pop()

    def request_onset(
        self, incident: Incident, checkpoint_steps: Collection[int]
    ) -> OnsetRequest | None:
        """The request for an incident that has just opened; None if there can be no estimate.

        Ranks that differ do not show in the value of the run. A value that is not finite is itself
        the onset, which the detector knows.
        """
        points, onset = self.points.get(incident.signal, ()), incident.onset_step
        if incident.finding.signal or any(not isfinite(x) for step, x in points if step >= onset):
            return None
        finite = tuple(point for point in points if isfinite(point[1]))
        if len(finite) < MIN_POINTS:
            return None
        return OnsetRequest(incident.name, onset, finite, tuple(checkpoint_steps))
