"""Engine: record in, verdict out. No threads, no clock, no input or output."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sentinel.model.finding import Clear, Detector, Finding
from sentinel.model.incident import Incident, IncidentKey
from sentinel.model.notification import Notification
from sentinel.model.record import WHOLE_RUN, Record
from sentinel.pipeline.cases import CaseBook
from sentinel.pipeline.incidents import IncidentBook

log = logging.getLogger(__name__)

MAX_DETECTOR_ERRORS = 3
"""A detector that fails this often is switched off for the run; the others go on."""


@dataclass(frozen=True, slots=True)
class Result:
    """Everything the engine concluded from one record.

    `pages` are of single incidents that opened, worsened or are over, `moved` those that calmed
    down or came back. `told` is what people are told of all that, incidents of one cause as one.
    """

    record: Record
    findings: Mapping[str, Finding] = field(default_factory=dict)
    notifications: tuple[Notification, ...] = ()
    changed_incidents: tuple[Incident, ...] = ()
    case_notifications: tuple[Notification, ...] = ()


MAX_CACHED_KEY_SETS = 256
"""Kinds of records that are remembered; a run that has more is judged all the same, and slower."""

KeyedDetector = tuple[IncidentKey, Detector]
"""A detector, and the key of its incidents."""


@dataclass
class Engine:
    """Shows each of a run's combined records to each detector and folds the opinions.

    `makers` builds one detector per run and name. Records of single ranks pass through unjudged.
    """

    detector_factories: Mapping[str, Callable[[], Detector]]
    incident_book: IncidentBook = field(default_factory=IncidentBook)
    case_book: CaseBook = field(default_factory=CaseBook)
    detectors: dict[IncidentKey, Detector] = field(default_factory=dict)
    error_counts: dict[str, int] = field(default_factory=dict)
    # Which detectors a run's records are shown to, by what is told in them, and the dict of
    # detectors they were taken from: with another one, of a snapshot, they are looked up anew.
    _detectors_by_key_set: dict[str, tuple[dict[frozenset[str], list[KeyedDetector]], object]] = (
        field(default_factory=dict, repr=False)
    )

    def process(self, record: Record) -> Result:
        """Judge one record. Never raises on a detector's account."""
        if record.rank != WHOLE_RUN:
            return Result(record)
        findings: dict[str, Finding] = {}
        news: list[Notification | Incident] = []
        troubled = {key.detector for key in self.incident_book.open_incidents}
        for key, detector in self._applicable_detectors(record.run, frozenset(record.values)):
            try:
                opinion = detector.update(record)
                # Of what is calm and has no incident there is nothing to fold: all but always.
                if opinion is None or (type(opinion) is Clear and key.detector not in troubled):
                    continue
                new = self.incident_book.update_incident(key, record, opinion, detector)
            except Exception:
                log.exception("Detector %s failed at step %d", key.detector, record.step)
                self._count_error(key.detector)
                continue
            if isinstance(opinion, Finding):
                findings[key.detector] = opinion
            if new is not None:
                news.append(new)
        news += self.incident_book.update(record)
        pages = tuple(new for new in news if isinstance(new, Notification))
        moved = tuple(new for new in news if isinstance(new, Incident))
        return Result(record, findings, pages, moved, self.case_book.update(record, news))

    def _applicable_detectors(self, run: str, keys: frozenset[str]) -> list[KeyedDetector]:
        """The detectors of a run that are not switched off and need no more, in their order."""
        kinds, of = self._detectors_by_key_set.get(run, ({}, None))
        if of is not self.detectors or len(kinds) > MAX_CACHED_KEY_SETS:
            kinds = {}
            self._detectors_by_key_set[run] = kinds, self.detectors
        seats = kinds.get(keys)
        if seats is None:
            names = [
                n
                for n in self.detector_factories
                if self.error_counts.get(n, 0) < MAX_DETECTOR_ERRORS
            ]
            known = [
                (IncidentKey(run, WHOLE_RUN, name), self.detector(run, name)) for name in names
            ]
            seats = kinds[keys] = [seat for seat in known if seat[1].needs <= keys]
        return seats

    def _count_error(self, name: str) -> None:
        self.error_counts[name] = self.error_counts.get(name, 0) + 1
        self._detectors_by_key_set.clear()

    def detector(self, run: str, name: str) -> Detector:
        """The detector of that name for that run, made at first sight."""
        key = IncidentKey(run, WHOLE_RUN, name)
        if key not in self.detectors:
            self.detectors[key] = self.detector_factories[name]()
        return self.detectors[key]
