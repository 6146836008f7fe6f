"""Engine: record in, verdict out. No threads, no clock, no input or output."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sentinel.model.finding import Calm, Detector, Finding
from sentinel.model.incident import Incident, IncidentBook, Key, Page
from sentinel.model.record import WHOLE_RUN, Record
from sentinel.pipeline.cases import CaseBook

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


MOST_KINDS = 256
"""Kinds of records that are remembered; a run that has more is judged all the same, and slower."""

Seat = tuple[Key, Detector]
"""A detector, and the key of its incidents."""


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
    # Which detectors a run's records are shown to, by what is told in them, and the dict of
    # detectors they were taken from: with another one, of a snapshot, they are looked up anew.
    _seated: dict[str, tuple[dict[frozenset[str], list[Seat]], object]] = field(
        default_factory=dict, repr=False
    )

    def feed(self, record: Record) -> Verdict:
        """Judge one record. Never raises on a detector's account."""
        if record.rank != WHOLE_RUN:
            return Verdict(record)
        findings: dict[str, Finding] = {}
        news: list[Page | Incident] = []
        troubled = {key.detector for key in self.book.open}
        for key, detector in self._seats(record.run, frozenset(record.values)):
            try:
                opinion = detector.update(record)
                # Of what is calm and has no incident there is nothing to fold: all but always.
                if opinion is None or (type(opinion) is Calm and key.detector not in troubled):
                    continue
                new = self.book.fold(key, record, opinion, detector)
            except Exception:
                log.exception("Detector %s failed at step %d", key.detector, record.step)
                self._note_error(key.detector)
                continue
            if isinstance(opinion, Finding):
                findings[key.detector] = opinion
            if new is not None:
                news.append(new)
        news += self.book.hear(record)
        pages = tuple(new for new in news if isinstance(new, Page))
        moved = tuple(new for new in news if isinstance(new, Incident))
        return Verdict(record, findings, pages, moved, self.cases.fold(record, news))

    def _seats(self, run: str, told: frozenset[str]) -> list[Seat]:
        """The detectors of a run that are not switched off and need no more, in their order."""
        kinds, of = self._seated.get(run, ({}, None))
        if of is not self.detectors or len(kinds) > MOST_KINDS:
            kinds = {}
            self._seated[run] = kinds, self.detectors
        seats = kinds.get(told)
        if seats is None:
            names = [n for n in self.makers if self.errors.get(n, 0) < ERRORS_BEFORE_OFF]
            known = [(Key(run, WHOLE_RUN, name), self.detector(run, name)) for name in names]
            seats = kinds[told] = [seat for seat in known if seat[1].needs <= told]
        return seats

    def _note_error(self, name: str) -> None:
        self.errors[name] = self.errors.get(name, 0) + 1
        self._seated.clear()

    def detector(self, run: str, name: str) -> Detector:
        """The detector of that name for that run, made at first sight."""
        key = Key(run, WHOLE_RUN, name)
        if key not in self.detectors:
            self.detectors[key] = self.makers[name]()
        return self.detectors[key]
