"""Evaluates records with detectors, and updates incidents and cases.

The engine has no thread and no clock, and does no input or output.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
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
from sentinel.model.record import (
    EVAL,
    LAYERS,
    ONSET,
    SAMPLE,
    SAVE,
    STAGE,
    START,
    STEP,
    TRAINING,
    WHOLE_RUN,
    Event,
    Record,
)
from sentinel.pipeline.cases import CaseBook, history_signals
from sentinel.pipeline.incidents import IncidentBook
from sentinel.pipeline.onset_request import OnsetEstimator, RecentSignals
from sentinel.pipeline.run_baselines import BASELINE_SETTINGS, RunBaselines
from sentinel.stats.baseline import TrajectoryPrior

log = logging.getLogger(__name__)

MAX_DETECTOR_ERRORS = 3
"""Exceptions after which a detector is switched off for the run; the others continue."""

ENDED_SCOPES = {
    STAGE: (Scope.STAGE, Resolution.STAGE_FINISHED),
    TRAINING: (Scope.TRAINING, Resolution.TRAINING_FINISHED),
}
"""The widest scope of detectors that an event ends, and why their incidents end."""

MAX_UNDATED = 64
"""Incidents that wait for the estimate of their onset; of the oldest ones above, the detector's
date stays."""

BLOCK_EVENTS = frozenset({STEP, EVAL, SAVE, SAMPLE, LAYERS})
"""Events of records that are evaluated together: those that change neither the detectors nor what
baselines start from."""

MAX_CACHED_LAYOUTS = 256
"""Events and keys of records, in their order, for which the applicable detectors are cached."""


class Threshold(NamedTuple):
    """The value from which on a detector would find a problem, in the unit of its signal."""

    signal: str
    value: float


# Not frozen, but never changed: there is one per record, which is the fastest to create.
@dataclass(slots=True)
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


class _Enabled(NamedTuple):
    """A detector that evaluates records, its method `update`, its name and its place among all."""

    update: Callable[..., DetectorOutput]
    name: str
    order: int
    key: IncidentKey
    detector: Detector


Output = tuple[_Enabled, Finding | Clear | Exception]
"""What a detector put out for a record: an exception if it raised one."""


# The function of the class takes twice the time.
_threshold = partial(tuple.__new__, Threshold)


@dataclass(frozen=True, slots=True)
class _Applicable:
    """The detectors that evaluate records of one event with the same keys, and what they need."""

    detectors: list[_Enabled]
    """Those that take a record only."""
    with_baselines: list[_Enabled]
    """Those that take baselines too."""
    signals: frozenset[str]
    """The signals among the keys whose baselines they need."""
    dated_signals: tuple[str, ...]
    """The signals among the keys from whose values onsets are estimated."""
    history_signals: tuple[str, ...]
    """The signals among the keys whose values are stored for causes."""


@dataclass(slots=True)
class Evaluation:
    """A record with what its detectors put out, if there is anything to conclude from it.

    `thresholds` are those of detectors without incident that found nothing. `error` is an exception
    of the baselines, without which no detector evaluated the record.
    """

    record: Record
    applicable: _Applicable
    outputs: list[Output] = field(default_factory=list)
    thresholds: dict[str, Threshold] = field(default_factory=dict)
    error: Exception | None = None

    def add(self, enabled: _Enabled, output: Finding | Clear, shown: set[str]) -> None:
        """Add an output; `shown` are the detectors whose Clear ends something."""
        name = enabled.name
        if type(output) is not Clear:
            shown.add(name)
        elif name not in shown:
            if output.threshold is not None:
                self.thresholds[name] = _threshold((enabled.detector.signal, output.threshold))
            return
        self.outputs.append((enabled, output))


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
        if record.event is ONSET:
            return self._set_onset(record)
        ended = self._start_anew(record) if record.event in ENDED_SCOPES else ()
        return self.conclude(self.evaluate((record,))[0], ended)

    def evaluate(self, records: Sequence[Record]) -> list[Evaluation]:
        """Run the detectors on records of one run; of several, events are in `BLOCK_EVENTS`.

        `conclude` has to be called with each evaluation, in order. One detector after another
        evaluates all records: its code stays in the caches of the processor, which halves the time.
        """
        evaluations = [Evaluation(each, self._applicable_detectors(each)) for each in records]
        shown = {key.detector for key in self.incident_book.open_incidents}
        self._run_with_baselines(evaluations, shown)
        rows = [each for each in evaluations if each.error is None]
        for enabled, own in _rows_by_detector(rows):
            update, clear = enabled.update, None if enabled.name in shown else CLEAR
            for row in own:
                try:
                    output = update(row.record)
                except Exception as error:
                    # Logged with those of other detectors, in the order of the records.
                    row.outputs.append((enabled, error))
                    continue
                # Nearly always nothing is wrong, and then there is nothing to conclude.
                if output is None or output is clear:
                    continue
                row.add(enabled, output, shown)
                clear = None if enabled.name in shown else CLEAR
        return evaluations

    def _run_with_baselines(self, evaluations: Iterable[Evaluation], shown: set[str]) -> None:
        """Add the outputs of the detectors that take baselines, which each record changes.

        `shown` are the detectors whose Clear matters.
        """
        for row in evaluations:
            record, detectors = row.record, row.applicable.with_baselines
            if not detectors:
                continue
            try:
                baselines = self._update_baselines(record, row.applicable.signals)
            except Exception as error:
                row.error = error
                continue
            for enabled in detectors:
                update, name, _, _, _ = enabled
                try:
                    output = update(record, baselines)
                except Exception as error:
                    row.outputs.append((enabled, error))
                    continue
                if output is None or (output is CLEAR and name not in shown):
                    continue
                row.add(enabled, output, shown)

    def conclude(self, evaluation: Evaluation, ended: Sequence[Notification] = ()) -> Result:
        """The result of a record, from the outputs of its detectors.

        `ended` are notifications of incidents that ended before it was evaluated.
        """
        record, applicable = evaluation.record, evaluation.applicable
        self.signals[record.run].update(record, applicable.dated_signals)
        if evaluation.error is not None:
            raise evaluation.error
        changes: list[Notification | Incident] = [*ended]
        findings = {}
        if evaluation.outputs:
            findings = self._update_incidents(evaluation, changes)
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
        return Result(record, findings, notifications, changed, cases, evaluation.thresholds)

    def _update_incidents(
        self, evaluation: Evaluation, changes: list[Notification | Incident]
    ) -> dict[str, Finding]:
        """The findings of the detectors; adds thresholds, and the changes of their incidents."""
        findings: dict[str, Finding] = {}
        record, thresholds = evaluation.record, evaluation.thresholds
        with_incident = {key.detector for key in self.incident_book.open_incidents}
        for (_, name, _, key, detector), output in sorted(
            evaluation.outputs, key=lambda each: each[0].order
        ):
            if self.error_counts.get(name, 0) >= MAX_DETECTOR_ERRORS:
                continue
            try:
                if isinstance(output, Exception):
                    raise output  # noqa: TRY301 - as one that its output causes
                if output.threshold is not None:
                    thresholds[name] = Threshold(detector.signal, output.threshold)
                if type(output) is Clear and name not in with_incident:
                    continue
                metadata = self.case_book.run_metadata(record.run)
                change = self.incident_book.update_incident(key, record, output, detector, metadata)
            except Exception as error:
                self._report_error(name, record, error)
                continue
            if isinstance(output, Finding):
                findings[name] = output
            if change is not None:
                changes.append(change)
        return findings

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
        if record.event is TRAINING:
            self.case_book.begin_training(run)
        metadata = self.case_book.run_metadata(run)
        start = replace(
            record,
            event=START,
            values={name: x for name, x in metadata.items() if not isinstance(x, str)},
            attributes={name: x for name, x in metadata.items() if isinstance(x, str)},
        )
        for update, name, *_ in self._applicable_detectors(start).detectors:
            if name in names:
                try:
                    update(start)
                except Exception as error:
                    self._report_error(name, record, error)
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

    def _update_baselines(self, record: Record, signals: frozenset[str]) -> RunBaselines:
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
        enabled: list[_Enabled] = []
        for order, name in enumerate(self.detector_factories):
            if self.error_counts.get(name, 0) < MAX_DETECTOR_ERRORS:
                key, detector = IncidentKey(run, WHOLE_RUN, name), self.detector(run, name)
                if receives(detector, record.event, keys):
                    enabled.append(_Enabled(detector.update, name, order, key, detector))
        wanted = frozenset[str]().union(*(wanted_baselines(each.detector) for each in enabled))
        return _Applicable(
            [each for each in enabled if not wanted_baselines(each.detector)],
            [each for each in enabled if wanted_baselines(each.detector)],
            # A signal without settings has no baseline.
            frozenset(wanted & keys & BASELINE_SETTINGS.keys()),
            tuple(sorted(self._signals(run).signals & keys)),
            history_signals(record.values),
        )

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


def _rows_by_detector(
    rows: list[Evaluation],
) -> Iterable[tuple[_Enabled, list[Evaluation]]]:
    """The detectors that take a record only, in order, each with the records that it evaluates."""
    layouts = {id(each.applicable): each.applicable for each in rows}
    if len(layouts) == 1:
        (layout,) = layouts.values()
        return zip(layout.detectors, repeat(rows), strict=False)
    by_order = {each.order: each for layout in layouts.values() for each in layout.detectors}
    return (
        (enabled, [each for each in rows if enabled in each.applicable.detectors])
        for enabled in by_order.values()
    )
