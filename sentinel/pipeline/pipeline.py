"""Fold: all that lies between the records of ranks and verdicts on the run, with its memory.

It is a pure fold over its input, so the same records give the same verdicts, live, replayed, or
fed again by an agent that took over from one that was killed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from sentinel import __version__
from sentinel.aggregate.aligner import Aligner
from sentinel.aggregate.text_samples import TextSampleAggregator
from sentinel.model.counters import Counters
from sentinel.model.diagnosis import Cause
from sentinel.model.finding import Detector
from sentinel.model.incident import Incident, IncidentKey, IncidentState
from sentinel.model.notification import Notification
from sentinel.model.record_batch import RecordOrBatch, entry_ranks
from sentinel.pipeline.cases import CaseBook, RunCases
from sentinel.pipeline.engine import Engine, Result
from sentinel.pipeline.incidents import IncidentBook
from sentinel.pipeline.snapshot import SnapshotError, deserialize, serialize

log = logging.getLogger(__name__)

SKIPPED_ERRORS: tuple[type[Exception], ...] = (Exception,)
"""What a record may raise that is then left unjudged; tests, which want to know, make it empty."""


@dataclass
class PipelineState:
    """All that the next agent goes on from; `stamp` is of the version and settings that made it."""

    fingerprint: str
    aligner: Aligner
    samples: TextSampleAggregator
    incident_book: IncidentBook
    cases: dict[str, RunCases]
    detectors: dict[IncidentKey, Detector]
    error_counts: dict[str, int]


class Pipeline:
    """Aligner and engine as one: `feed` takes a record in and yields what it leads to."""

    def __init__(
        self,
        detector_factories: Mapping[str, Callable[[], Detector]],
        counters: Counters,
        causes: Mapping[str, Cause] | None = None,
    ) -> None:
        self.counters = counters
        self.aligner = Aligner(counters)
        self.samples = TextSampleAggregator()
        self.engine = Engine(detector_factories, case_book=CaseBook(causes or {}))

    def process(self, entry: RecordOrBatch) -> Iterator[Result]:
        """A record's own verdict, then one for each combined record that it completes.

        One that cannot be judged is counted and left: the next agent would fall over it again, and
        the one after that, and nobody would watch.
        """
        try:
            for moment in self.aligner.process(entry):
                for told in self.samples.process(moment):
                    yield self.engine.process(told)
        except SKIPPED_ERRORS:
            log.exception(
                "What ranks %s say cannot be judged: it is left aside", entry_ranks(entry)
            )
            self.counters.add("sentinel_dropped_records_total", "processing_failed", len(entry_ranks(entry)))

    def firing_incidents(self) -> list[Incident]:
        """Incidents that a page exists for and that are not over."""
        return [
            i
            for i in self.engine.incident_book.open_incidents.values()
            if i.state is IncidentState.FIRING
        ]

    def current_notifications(self) -> Iterator[Notification]:
        """What people would be told of each case that fires, if they were told now."""
        return self.engine.case_book.current_notifications()

    def serialize(self) -> str | None:
        """The memory as text; None if a plug-in keeps something that cannot be stored."""
        kept = PipelineState(
            self._fingerprint(),
            # What was counted is the agent's to keep, not a step's.
            replace(self.aligner, counters=Counters()),
            self.samples,
            self.engine.incident_book,
            self.engine.case_book.runs,
            self.engine.detectors,
            self.engine.error_counts,
        )
        try:
            return serialize(kept)
        except SnapshotError:
            log.exception("The detectors' state cannot be stored")
            return None

    def restore(self, text: str) -> bool:
        """Take over what `freeze` gave, if it is of this version and these detector settings.

        Whether it was taken over; if not, detectors begin anew.
        """
        modules = {type(make()).__module__ for make in self.engine.detector_factories.values()}
        try:
            kept = deserialize(text, modules)
        except SnapshotError:
            log.exception("The stored state cannot be read; detectors begin anew")
            return False
        if not isinstance(kept, PipelineState) or kept.fingerprint != self._fingerprint():
            log.warning("Version or detector settings changed; detectors begin anew")
            return False
        self.aligner, self.samples = kept.aligner, kept.samples
        self.aligner.counters = self.counters
        self.engine.incident_book, self.engine.case_book.runs = kept.incident_book, kept.cases
        self.engine.detectors, self.engine.error_counts = kept.detectors, kept.error_counts
        return True

    def _fingerprint(self) -> str:
        return f"{__version__} {[repr(make()) for make in self.engine.detector_factories.values()]}"
