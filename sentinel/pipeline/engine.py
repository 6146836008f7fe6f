"""Evaluates records with detectors, and updates incidents and cases.

The engine has no thread and no clock, and does no input or output.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sentinel.model.finding import Clear, Detector, Finding, wanted_baselines
from sentinel.model.incident import Incident, IncidentKey
from sentinel.model.notification import Notification
from sentinel.model.record import WHOLE_RUN, Record
from sentinel.pipeline.cases import CaseBook
from sentinel.pipeline.incidents import IncidentBook
from sentinel.pipeline.run_baselines import BASELINE_SETTINGS, RunBaselines
from sentinel.stats.baseline import TrajectoryPrior

log = logging.getLogger(__name__)

MAX_DETECTOR_ERRORS = 3
"""Exceptions after which a detector is switched off for the run; the others continue."""

MAX_CACHED_KEY_SETS = 256
"""Key sets of records for which the applicable detectors are cached."""


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
    """The detectors that evaluate records with one set of keys, and the baselines they need."""

    detectors: list[tuple[IncidentKey, Detector, bool]]
    """The last is whether the detector takes baselines."""
    signals: frozenset[str] | None
    """The signals among the keys whose baselines they need; None if no detector takes any."""


@dataclass(slots=True)
class _DetectorCache:
    """Applicable detectors by the key set of a record; valid for one `detectors` dict only."""

    detectors: dict[IncidentKey, Detector]
    by_key_set: dict[frozenset[str], _Applicable] = field(default_factory=dict)


@dataclass
class Engine:
    """Evaluates each combined record of a run with every applicable detector.

    `detector_factories` build one detector per run and name. Records of single ranks are not
    evaluated. `baselines` are those of each run, updated once per record for all detectors.
    `priors` are the trajectories that a run starts from, in place of the general ones.
    """

    detector_factories: Mapping[str, Callable[[], Detector]]
    incident_book: IncidentBook = field(default_factory=IncidentBook)
    case_book: CaseBook = field(default_factory=CaseBook)
    detectors: dict[IncidentKey, Detector] = field(default_factory=dict)
    error_counts: dict[str, int] = field(default_factory=dict)
    baselines: dict[str, RunBaselines] = field(default_factory=dict)
    priors: dict[str, Mapping[str, TrajectoryPrior]] = field(default_factory=dict)
    _caches: dict[str, _DetectorCache] = field(default_factory=dict, repr=False)

    def process(self, record: Record) -> Result:
        """Evaluate one record. An exception of a detector is logged and counted, not raised."""
        if record.rank != WHOLE_RUN:
            return Result(record)
        findings: dict[str, Finding] = {}
        thresholds: dict[str, Threshold] = {}
        changes: list[Notification | Incident] = []
        with_incident = {key.detector for key in self.incident_book.open_incidents}
        applicable = self._applicable_detectors(record.run, frozenset(record.values))
        baselines = self._update_baselines(record, applicable.signals)
        for key, detector, takes_baselines in applicable.detectors:
            try:
                output = (
                    detector.update(record, baselines)
                    if takes_baselines
                    else detector.update(record)
                )
                if output is None:
                    continue
                if output.threshold is not None:
                    thresholds[key.detector] = Threshold(detector.signal, output.threshold)
                # Nearly always nothing is wrong, and then there is nothing to update.
                if type(output) is Clear and key.detector not in with_incident:
                    continue
                metadata = self.case_book.run_metadata(record.run)
                change = self.incident_book.update_incident(key, record, output, detector, metadata)
            except Exception:
                log.exception("Detector %s failed at step %d", key.detector, record.step)
                self._count_error(key.detector)
                continue
            if isinstance(output, Finding):
                findings[key.detector] = output
            if change is not None:
                changes.append(change)
        changes += self.incident_book.update(record)
        notifications = tuple(each for each in changes if isinstance(each, Notification))
        changed = tuple(each for each in changes if isinstance(each, Incident))
        checkpoints = self.incident_book.checkpoint_steps.get(record.run, ())
        cases = self.case_book.update(record, changes, checkpoints)
        return Result(record, findings, notifications, changed, cases, thresholds)

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

    def _applicable_detectors(self, run: str, keys: frozenset[str]) -> _Applicable:
        """The detectors of a run that are not switched off and need no other keys, in order."""
        cache = self._caches.get(run)
        # A restored snapshot brings other detectors.
        if (
            cache is None
            or cache.detectors is not self.detectors
            or len(cache.by_key_set) > MAX_CACHED_KEY_SETS
        ):
            cache = self._caches[run] = _DetectorCache(self.detectors)
        applicable = cache.by_key_set.get(keys)
        if applicable is None:
            enabled = (
                (IncidentKey(run, WHOLE_RUN, name), self.detector(run, name))
                for name in self.detector_factories
                if self.error_counts.get(name, 0) < MAX_DETECTOR_ERRORS
            )
            keyed = [
                (key, detector, bool(wanted_baselines(detector)))
                for key, detector in enabled
                if detector.needs <= keys
            ]
            wanted = frozenset[str]().union(*(wanted_baselines(each) for _, each, _ in keyed))
            # A signal without settings has no baseline.
            known = (wanted & keys).intersection(BASELINE_SETTINGS)
            applicable = _Applicable(keyed, known if wanted else None)
            cache.by_key_set[keys] = applicable
        return applicable

    def _count_error(self, name: str) -> None:
        self.error_counts[name] = self.error_counts.get(name, 0) + 1
        self._caches.clear()

    def detector(self, run: str, name: str) -> Detector:
        """The detector of that name for that run; created at first use."""
        key = IncidentKey(run, WHOLE_RUN, name)
        if key not in self.detectors:
            self.detectors[key] = self.detector_factories[name]()
        return self.detectors[key]
