"""Evaluates records with detectors, and updates incidents and cases.

The engine has no thread and no clock, and does no input or output.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sentinel.model.finding import (
    CLEAR,
    Clear,
    Detector,
    DetectorOutput,
    Finding,
    Scope,
    detector_scope,
    receives,
    wanted_baselines,
)
from sentinel.model.incident import Incident, IncidentKey, Onset, Resolution
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.cases import CaseBook, history_signals
from sentinel.pipeline.incidents import IncidentBook
from sentinel.pipeline.onset_request import OnsetEstimator, RecentSignals
from sentinel.pipeline.run_baselines import BASELINE_SETTINGS, RunBaselines
from sentinel.stats.baseline import TrajectoryPrior

log = logging.getLogger(__name__)

MAX_DETECTOR_ERRORS = 3
"""Exceptions after which a detector is switched off for the run; the others continue."""

ENDED_SCOPES = {
    Event.STAGE: (Scope.STAGE, Resolution.STAGE_FINISHED),
    Event.TRAINING: (Scope.TRAINING, Resolution.TRAINING_FINISHED),
}
"""The widest scope of detectors that an event ends, and why their incidents end."""

MAX_UNDATED = 64
"""Incidents that wait for the estimate of their onset; of the oldest ones above, the detector's
date stays."""

MAX_CACHED_LAYOUTS = 256
"""Events and keys of records, in their order, for which the applicable detectors are cached."""


class Threshold(NamedTuple):
    """The value from which on a detector would find a problem, in the unit of its signal."""

    signal: str
    value: float


@dataclass(frozen=True, slots=True)
class Result:
    """What the engine concluded from one record.

    `notifications` are of single incidents that opened, escalated or resolved; `changed_incidents`
    changed state without a notification. `case_notifications` are those that are sent: incidents of
    one cause as one case. `thresholds` are those of the detectors that stated one, by name.
    """

    record: Record
    findings: Mapping[str, Finding] = field(default_factory=dict)
    notifications: tuple[Notification, ...] = ()
    changed_incidents: tuple[Incident, ...] = ()
    case_notifications: tuple[Notification, ...] = ()
    thresholds: Mapping[str, Threshold] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Applicable:
    """The detectors that evaluate records of one event with the same keys, and what they need."""

    detectors: list[tuple[Callable[..., DetectorOutput], bool, IncidentKey, Detector]]
    """The method `update` of each, whether that takes baselines, its key, and itself."""
    signals: frozenset[str] | None
    """The signals among the keys whose baselines they need; None if no detector takes any."""
    dated_signals: tuple[str, ...]
    """The signals among the keys from whose values onsets are estimated."""
    history_signals: tuple[str, ...]
    """The signals among the keys whose values are stored for causes."""


@dataclass(slots=True)
class _DetectorCache:
    """Applicable detectors by event and keys of a record; valid for one `detectors` dict only."""

    detectors: dict[IncidentKey, Detector]
    by_layout: dict[tuple[Event, tuple[str, ...]], _Applicable] = field(default_factory=dict)


@dataclass
class Engine:
    """Evaluates each combined record of a run with every applicable detector.

    `detector_factories` build one detector per run and name. Records of single ranks are not
    evaluated. `baselines` are those of each run, updated once per record for all detectors.
    `priors` are the trajectories that a run starts from, in place of the general ones.
    `estimate_onset` dates an incident when it opens; if it raises, the detector's date stays.
    Without it, the onsets arrive as records of the event ONSET, and until then
    `incident_book.undated` has the incidents that wait for one.
    """

    detector_factories: Mapping[str, Callable[[], Detector]]
    incident_book: IncidentBook = field(default_factory=IncidentBook)
    case_book: CaseBook = field(default_factory=CaseBook)
    detectors: dict[IncidentKey, Detector] = field(default_factory=dict)
    error_counts: dict[str, int] = field(default_factory=dict)
    baselines: dict[str, RunBaselines] = field(default_factory=dict)
    priors: dict[str, Mapping[str, TrajectoryPrior]] = field(default_factory=dict)
    signals: dict[str, RecentSignals] = field(default_factory=dict)
    estimate_onset: OnsetEstimator | None = None
    _caches: dict[str, _DetectorCache] = field(default_factory=dict, repr=False)

    def process(self, record: Record) -> Result:
        """Evaluate one record. An exception of a detector is logged and counted, not raised."""
        if record.rank != WHOLE_RUN:
            return Result(record)
        if record.event is Event.ONSET:
            return self._set_onset(record)
        applicable = self._applicable_detectors(record)
        self._signals(record.run).update(record, applicable.dated_signals)
        changes: list[Notification | Incident] = []
        if record.event in ENDED_SCOPES:
            changes += self._start_anew(record)
            applicable = self._applicable_detectors(record)
        findings, thresholds = self._run_detectors(record, applicable, changes)
        changes += self.incident_book.update(record, self.case_book.critical_names)
        checkpoints = self.incident_book.checkpoint_steps.get(record.run, ())
        notifications: tuple[Notification, ...] = ()
        changed: tuple[Incident, ...] = ()
        if changes:
            notifications = tuple(each for each in changes if isinstance(each, Notification))
            changed = tuple(each for each in changes if isinstance(each, Incident))
            self._date_opened(notifications, checkpoints)
        cases = self.case_book.update(
            record, changes, checkpoints, self.incident_book.undated, applicable.history_signals
        )
        return Result(record, findings, notifications, changed, cases, thresholds)

    def _run_detectors(
        self, record: Record, applicable: _Applicable, changes: list[Notification | Incident]
    ) -> tuple[dict[str, Finding], dict[str, Threshold]]:
        """Findings and thresholds of the detectors; adds the changes of their incidents."""
        findings: dict[str, Finding] = {}
        thresholds: dict[str, Threshold] = {}
        with_incident = {key.detector for key in self.incident_book.open_incidents}
        baselines = self._update_baselines(record, applicable.signals)
        for update, takes_baselines, key, detector in applicable.detectors:
            try:
                output = update(record, baselines) if takes_baselines else update(record)
                # Nearly always nothing is wrong, and then there is nothing to update.
                if output is None or (output is CLEAR and not with_incident):
                    continue
                if output.threshold is not None:
                    thresholds[key.detector] = Threshold(detector.signal, output.threshold)
                if type(output) is Clear and key.detector not in with_incident:
                    continue
                metadata = self.case_book.run_metadata(record.run)
                change = self.incident_book.update_incident(key, record, output, detector, metadata)
            except Exception as error:
                self._report_error(key.detector, record, error)
                continue
            if isinstance(output, Finding):
                findings[key.detector] = output
            if change is not None:
                changes.append(change)
        return findings, thresholds

    def _start_anew(self, record: Record) -> list[Notification]:
        """Replace baselines and detectors, since the record begins another training or stage.

        The new ones get the metadata of the run as they do at a start.
        """
        run, (widest, resolution) = record.run, ENDED_SCOPES[record.event]
        names = {
            name
            for name in self.detector_factories
            if detector_scope(self.detector(run, name)).value <= widest.value
        }
        for name in names:
            del self.detectors[IncidentKey(run, WHOLE_RUN, name)]
        self._caches.clear()
        self.baselines.pop(run, None)
        self.priors.pop(run, None)
        if record.event is Event.TRAINING:
            self.case_book.begin_training(run)
        metadata = self.case_book.run_metadata(run)
        start = replace(
            record,
            event=Event.START,
            values={name: x for name, x in metadata.items() if not isinstance(x, str)},
            attributes={name: x for name, x in metadata.items() if isinstance(x, str)},
        )
        for update, takes_baselines, key, _ in self._applicable_detectors(start).detectors:
            if key.detector in names and not takes_baselines:
                try:
                    update(start)
                except Exception as error:
                    self._report_error(key.detector, record, error)
        critical = self.case_book.critical_names(run)
        return [*self.incident_book.start_anew(record, names, resolution, critical)]

    def _signals(self, run: str) -> RecentSignals:
        """The values from which the onsets of incidents are estimated."""
        signals = self.signals.get(run)
        if signals is None:
            wanted = {self.detector(run, name).signal for name in self.detector_factories}
            signals = self.signals[run] = RecentSignals(wanted)
        return signals

    def _date_opened(
        self, notifications: Iterable[Notification], checkpoint_steps: Collection[int]
    ) -> None:
        """Estimate the onsets of the incidents that have just opened, or request the estimates."""
        for notification in notifications:
            if notification.reason is NotificationReason.OPENED:
                self._date(notification.incident, checkpoint_steps)

    def _date(self, incident: Incident, checkpoint_steps: Collection[int]) -> None:
        signals = self.signals[incident.key.run]
        request = signals.request_onset(incident, checkpoint_steps)
        if request is None:
            return
        if self.estimate_onset is None:
            undated = self.incident_book.undated
            undated[incident.name] = request
            if len(undated) > MAX_UNDATED:
                del undated[next(iter(undated))]
            return
        try:
            onset = self.estimate_onset(request.points, request.suspected_step)
        except Exception:
            log.exception("The onset of %s cannot be estimated", incident.name)
            return
        if onset is not None:
            self.incident_book.undated[incident.name] = request
            incident.set_onset(self.incident_book.set_onset(incident.name, onset))

    def _set_onset(self, record: Record) -> Result:
        """Date an incident whose onset was estimated outside."""
        name, steps = record.attributes.get("incident", ""), record.values
        if name not in self.incident_book.undated:
            return Result(record)
        onset = None
        if steps:
            onset = Onset(*(int(steps[each]) for each in ("step", "earliest", "latest")))
            onset = self.incident_book.set_onset(name, onset)
        else:
            del self.incident_book.undated[name]
        undated = self.incident_book.undated
        incident, cases = self.case_book.set_onset(record, name, onset, undated)
        changed = () if incident is None else (incident,)
        return Result(record, changed_incidents=changed, case_notifications=cases)

    def _update_baselines(
        self, record: Record, signals: frozenset[str] | None
    ) -> RunBaselines | None:
        if signals is None:
            return None
        baselines = self.baselines.get(record.run)
        if baselines is None:
            priors = self.priors.get(record.run, {})
            baselines = self.baselines[record.run] = RunBaselines(priors=priors)
        return baselines.update(record, signals)

    def _applicable_detectors(self, record: Record) -> _Applicable:
        """The detectors that are not switched off and receive such a record, in order."""
        run, layout = record.run, (record.event, tuple(record.values))
        cache = self._caches.get(run)
        # A restored snapshot brings other detectors.
        if (
            cache is None
            or cache.detectors is not self.detectors
            or len(cache.by_layout) > MAX_CACHED_LAYOUTS
        ):
            cache = self._caches[run] = _DetectorCache(self.detectors)
        applicable = cache.by_layout.get(layout)
        if applicable is None:
            applicable = cache.by_layout[layout] = self._find_applicable(record)
        return applicable

    def _find_applicable(self, record: Record) -> _Applicable:
        run, keys = record.run, record.values.keys()
        enabled = (
            (IncidentKey(run, WHOLE_RUN, name), self.detector(run, name))
            for name in self.detector_factories
            if self.error_counts.get(name, 0) < MAX_DETECTOR_ERRORS
        )
        keyed = [
            (detector.update, bool(wanted_baselines(detector)), key, detector)
            for key, detector in enabled
            if receives(detector, record.event, keys)
        ]
        wanted = frozenset[str]().union(*(wanted_baselines(each) for *_, each in keyed))
        # A signal without settings has no baseline.
        known = frozenset(wanted & keys & BASELINE_SETTINGS.keys())
        dated = tuple(sorted(self._signals(run).signals & keys))
        history = history_signals(record.values)
        return _Applicable(keyed, known if wanted else None, dated, history)

    def _report_error(self, name: str, record: Record, error: Exception) -> None:
        """Log and count an exception of that detector."""
        log.error("Detector %s failed at step %d", name, record.step, exc_info=error)
        self.error_counts[name] = self.error_counts.get(name, 0) + 1
        self._caches.clear()

    def detector(self, run: str, name: str) -> Detector:
        """The detector of that name for that run; created at first use."""
        key = IncidentKey(run, WHOLE_RUN, name)
        if key not in self.detectors:
            self.detectors[key] = self.detector_factories[name]()
        return self.detectors[key]
