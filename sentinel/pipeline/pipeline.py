"""The path from the records of ranks to results: aggregation, detectors, incidents and cases.

The same records give the same results, whether they come live, from a log or from the journal of
an agent that was killed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from sentinel import __version__
from sentinel.aggregate.aligner import Aligner
from sentinel.aggregate.layers import LayerAggregator
from sentinel.aggregate.text_samples import TextSampleAggregator
from sentinel.aggregate.trainings import TrainingTracker
from sentinel.config.settings import Settings, build_causes, build_detectors
from sentinel.model.counters import Counters
from sentinel.model.diagnosis import Cause
from sentinel.model.finding import Detector
from sentinel.model.incident import Incident, IncidentKey, IncidentState, Resolution
from sentinel.model.notification import Notification
from sentinel.model.record import WHOLE_RUN, Record
from sentinel.model.record_batch import RecordOrBatch, entry_ranks
from sentinel.pipeline.cases import CaseBook, RunCases
from sentinel.pipeline.engine import BLOCK_EVENTS, Engine, Result
from sentinel.pipeline.incidents import IncidentBook
from sentinel.pipeline.onset_request import OnsetRequest, RecentSignals
from sentinel.pipeline.run_baselines import RunBaselines
from sentinel.pipeline.snapshot import SnapshotError, deserialize, serialize
from sentinel.pipeline.time_use import TimeUse

log = logging.getLogger(__name__)

SKIPPED_ERRORS: tuple[type[Exception], ...] = (Exception,)
"""Exceptions after which a record is skipped. Tests set it to () so that errors surface."""


@dataclass
class PipelineState:
    """The state that is stored; `fingerprint` is of the version and the detector settings."""

    fingerprint: str
    aligner: Aligner
    trainings: TrainingTracker
    samples: TextSampleAggregator
    layers: LayerAggregator
    incident_book: IncidentBook
    cases: dict[str, RunCases]
    detectors: dict[IncidentKey, Detector]
    error_counts: dict[str, int]
    baselines: dict[str, RunBaselines]
    signals: dict[str, RecentSignals]
    time_use: TimeUse


class Pipeline:
    """Aggregates the records of ranks and evaluates the combined records; see `process`."""

    def __init__(
        self,
        detector_factories: Mapping[str, Callable[[], Detector]],
        counters: Counters,
        causes: Mapping[str, Cause] | None = None,
        keys: Mapping[str, str] | None = None,
        incident_book: IncidentBook | None = None,
    ) -> None:
        self.counters = counters
        self.keys = dict(keys or {})
        self.aligner = Aligner(counters, keys=self.keys)
        self.trainings = TrainingTracker()
        self.samples = TextSampleAggregator()
        self.layers = LayerAggregator(counters)
        self.time_use = TimeUse()
        """For the agent, which updates it: a replay does not need it."""
        incident_book = IncidentBook() if incident_book is None else incident_book
        self.engine = Engine(detector_factories, incident_book, CaseBook(causes or {}))

    def process(self, entry: RecordOrBatch) -> Iterator[Result]:
        """The result of the record itself, then one for each combined record it completes.

        A record that raises is counted and skipped: it would raise in every agent that replays the
        journal, and leave the run unmonitored.
        """
        try:
            for record in self._aggregate(entry):
                yield self.engine.process(record)
        except SKIPPED_ERRORS as error:
            self._report_error(entry_ranks(entry), error)

    def process_block(self, entries: Iterable[RecordOrBatch]) -> Iterator[Result]:
        """The results that `process` would give of these entries, in much less time.

        The entries are read, and evaluated, before the first result.
        """
        records: list[Record] = []
        for entry in entries:
            try:
                records.extend(self._aggregate(entry))
            except SKIPPED_ERRORS as error:
                self._report_error(entry_ranks(entry), error)
        for run, group in groupby(records, key=_block_run):
            block = [*group]
            in_run = [] if run is None else [each for each in block if each.rank == WHOLE_RUN]
            evaluations = iter(self.engine.evaluate(in_run))
            for record in block:
                try:
                    if run is None or record.rank != WHOLE_RUN:
                        yield self.engine.process(record)
                    else:
                        yield self.engine.conclude(next(evaluations))
                except SKIPPED_ERRORS as error:
                    self._report_error((record.rank,), error)

    def _aggregate(self, entry: RecordOrBatch) -> Iterator[Record]:
        for aligned in self.aligner.process(entry):
            for numbered in self.trainings.process(aligned):
                for with_texts in self.samples.process(numbered):
                    yield from self.layers.process(with_texts)

    def _report_error(self, ranks: Collection[int], error: Exception) -> None:
        text = "A record of ranks %s cannot be processed and is skipped"
        log.error(text, ranks, exc_info=error)
        self.counters.add("sentinel_dropped_records_total", "processing_failed", len(ranks))

    @property
    def readable_signals(self) -> frozenset[str]:
        """The signals that the enabled detectors read, by what they need and declare."""
        detectors = [make() for make in self.engine.detector_factories.values()]
        return frozenset().union(
            *({each.signal, *each.needs, *getattr(each, "reads", ())} for each in detectors)
        )

    def firing_incidents(self) -> list[Incident]:
        """Incidents in the state firing."""
        return [
            incident
            for incident in self.engine.incident_book.open_incidents.values()
            if incident.state is IncidentState.FIRING
        ]

    @property
    def undated_incidents(self) -> Mapping[str, OnsetRequest]:
        """The incidents, by name, that wait for a record of the event ONSET with their onset."""
        return self.engine.incident_book.undated

    def current_notifications(self) -> Iterator[Notification]:
        """A notification of each open case in its present state."""
        return self.engine.case_book.current_notifications()

    def drop_closed(self, resolutions: Mapping[str, Resolution]) -> bool:
        """Drop the firing incidents that another process closed, by name; whether there were any.

        What is found after that is another episode.
        """
        names = self.engine.incident_book.drop_closed(resolutions)
        self.engine.case_book.drop_closed(names)
        return bool(names)

    def serialize(self) -> str | None:
        """The state as text; None if a plug-in holds something that cannot be stored."""
        aligner, layers = copy(self.aligner), copy(self.layers)
        # The agent stores its counters itself.
        aligner.counters = layers.counters = Counters()
        for signals in self.engine.signals.values():
            signals.split_rows()
        for cases in self.engine.case_book.runs.values():
            cases.split_rows()
        state = PipelineState(
            self._fingerprint,
            aligner,
            self.trainings,
            self.samples,
            layers,
            self.engine.incident_book,
            self.engine.case_book.runs,
            self.engine.detectors,
            self.engine.error_counts,
            self.engine.baselines,
            self.engine.signals,
            self.time_use,
        )
        try:
            return serialize(state)
        except SnapshotError:
            log.exception("The state of the detectors cannot be stored")
            return None

    def restore(self, text: str) -> bool:
        """Continue from what `serialize` returned; whether version and settings are the same.

        If they are not, the detectors start from scratch.
        """
        modules = {type(make()).__module__ for make in self.engine.detector_factories.values()}
        try:
            state = deserialize(text, modules)
        except SnapshotError:
            log.exception("The stored state cannot be read; the detectors start from scratch")
            return False
        if not isinstance(state, PipelineState) or state.fingerprint != self._fingerprint:
            log.warning("Version or detector settings changed; the detectors start from scratch")
            return False
        self.aligner, self.trainings = state.aligner, state.trainings
        self.samples, self.layers = state.samples, state.layers
        self.aligner.counters = self.layers.counters = self.counters
        self.aligner.configure_keys(self.keys)
        book, present = state.incident_book, self.engine.incident_book
        book.resolve_seconds = present.resolve_seconds
        book.cooldown_seconds = present.cooldown_seconds
        self.engine.incident_book, self.engine.case_book.runs = book, state.cases
        self.engine.detectors, self.engine.error_counts = state.detectors, state.error_counts
        self.engine.baselines, self.engine.signals = state.baselines, state.signals
        self.time_use = state.time_use
        return True

    @cached_property
    def _fingerprint(self) -> str:
        return f"{__version__} {[repr(make()) for make in self.engine.detector_factories.values()]}"


def _block_run(record: Record) -> str | None:
    """The run of a record that is evaluated together with others of it; None of another record."""
    return record.run if record.event in BLOCK_EVENTS else None


def build(settings: Settings, counters: Counters | None = None) -> Pipeline:
    """The pipeline with the detectors as set and every cause, as agent, replay and watch use it."""
    counters = Counters() if counters is None else counters
    book = IncidentBook(
        resolve_seconds=settings.resolve_seconds, cooldown_seconds=settings.cooldown_seconds
    )
    return Pipeline(build_detectors(settings), counters, build_causes(), settings.keys, book)
