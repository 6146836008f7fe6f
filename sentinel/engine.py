"""Engine: record in, verdict out. No threads, no clock, no input or output."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sentinel.cases import CaseBook
from sentinel.finding import Detector, Finding
from sentinel.incident import Incident, IncidentBook, Key, Page
from sentinel.record import WHOLE_RUN, Record

log = logging.getLogger(__name__)

ERRORS_BEFORE_OFF = 3
"""A detector that fails this often is switched off for the run; the others go on."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Everything the engine concluded from one record.

    `pages` are of single incidents that opened, worsened or are over, `moved` those that calmed
    down or came back. `told` is what people are told of all that, incidents of one cause as one.
    """

    record: Record
    findings: Mapping[str, Finding] = field(default_factory=dict)
    pages: tuple[Page, ...] = ()
    moved: tuple[Incident, ...] = ()
    told: tuple[Page, ...] = ()


@dataclass
class Engine:
    """Shows each of a run's combined records to each detector and folds the opinions.

    `makers` builds one detector per run and name. Records of single ranks pass through unjudged.
    """

    makers: Mapping[str, Callable[[], Detector]]
    book: IncidentBook = field(default_factory=IncidentBook)
    cases: CaseBook = field(default_factory=CaseBook)
    detectors: dict[Key, Detector] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)

    def feed(self, record: Record) -> Verdict:
        """Judge one record. Never raises on a detector's account."""
        if record.rank != WHOLE_RUN:
            return Verdict(record)
        findings: dict[str, Finding] = {}
        news: list[Page | Incident] = []
        for name in self.makers:
            if self.errors.get(name, 0) >= ERRORS_BEFORE_OFF:
                continue
            try:
                new = self._ask(name, record, findings)
            except Exception:
                self.errors[name] = self.errors.get(name, 0) + 1
                log.exception("Detector %s failed at step %d", name, record.step)
                continue
            if new is not None:
                news.append(new)
        news += self.book.hear(record)
        pages = tuple(new for new in news if isinstance(new, Page))
        moved = tuple(new for new in news if isinstance(new, Incident))
        return Verdict(record, findings, pages, moved, self.cases.fold(record, news))

    def _ask(
        self, name: str, record: Record, findings: dict[str, Finding]
    ) -> Page | Incident | None:
        detector = self.detector(record.run, name)
        if not detector.needs <= record.values.keys():
            return None
        opinion = detector.update(record)
        if isinstance(opinion, Finding):
            findings[name] = opinion
        key = Key(record.run, record.rank, name)
        return self.book.fold(key, record, opinion, detector)

    def detector(self, run: str, name: str) -> Detector:
        """The detector of that name for that run, made at first sight."""
        key = Key(run, WHOLE_RUN, name)
        if key not in self.detectors:
            self.detectors[key] = self.makers[name]()
        return self.detectors[key]
