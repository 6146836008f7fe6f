"""Aligns the records of all ranks at one step and combines them into one record of the run.

Ranks are aligned by attempt and step index, which only grow; the trainer's own step number is
carried along and may be wrong. `Steps` decides when a step is complete, by the clock of the
heartbeats; here are the other events of ranks, which do not wait for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sentinel.aggregate.rank_membership import RankMembership
from sentinel.aggregate.steps import EVENTS_IN_ORDER, MAX_PENDING_STEPS, Steps
from sentinel.model.counters import Counters
from sentinel.model.record import (
    HEARTBEAT,
    LAYERS,
    METADATA,
    SAMPLE,
    SAVE,
    START,
    STEP,
    STOP,
    WHOLE_RUN,
    Event,
    Record,
    is_collective_turned_off,
)
from sentinel.model.record_batch import RecordBatch, RecordOrBatch, entry_ranks
from sentinel.signals.run_metadata import RunMetadata

__all__ = ["ENDED_STATES", "MAX_PENDING_STEPS", "Aligner"]

ENDED_STATES = frozenset({"finished", "failed", "died"})
"""States of a heartbeat when no rank is left."""

_HELD_EVENTS = (METADATA, SAVE)
"""Events that must not be taken for those of the training before."""

_COMBINED_ELSEWHERE = frozenset({SAMPLE, LAYERS})
"""Events of ranks that `TextSampleAggregator` and `LayerAggregator` combine."""


@dataclass
class Aligner:
    """Combines records of ranks into records of the run; `process` yields what a record completes.

    Records of single ranks are yielded unchanged, before what they complete; those of a batch are
    not.
    """

    counters: Counters = field(default_factory=Counters)
    deadline_seconds: float = 10.0
    settle_seconds: float = 0.5

    attempt: int = -1
    now: float = 0.0
    """Time of the last heartbeat; before the first, of the first record."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Logged keys with the signals that they stand for, from the settings."""
    steps: Steps = field(init=False)
    last_saved_index: int = -1

    def __post_init__(self) -> None:
        self._begin_attempt(self.attempt)

    def _begin_attempt(self, attempt: int) -> None:
        """Begin with an attempt, whose ranks are not known."""
        self.attempt, self.last_saved_index = attempt, -1
        membership = RankMembership(self.deadline_seconds, started_at=self.now)
        self.steps = Steps(membership, RunMetadata(), self.deadline_seconds, self.settle_seconds)
        self.configure_keys(self.keys)

    def configure_keys(self, keys: Mapping[str, str]) -> None:
        """Take over the keys of the settings."""
        self.keys = dict(keys)
        self.steps.metadata.configure_keys(keys)

    @property
    def max_step_index(self) -> float:
        """See `Steps.max_step_index`."""
        return self.steps.max_step_index

    def process(self, entry: RecordOrBatch) -> Iterator[Record]:
        """Add a record or batch; yield the record, then the combined records it completes."""
        if isinstance(entry, RecordBatch):
            if self._is_current(entry, entry.times[0]):
                yield from self._process_values(entry, STEP)
        elif entry.event is HEARTBEAT:
            yield from self._process_heartbeat(entry)
        elif entry.rank == WHOLE_RUN:
            # Read from a log: a record of the run already.
            yield entry
        elif self._is_current(entry, entry.time):
            yield entry
            if entry.event in EVENTS_IN_ORDER:
                yield from self._process_values(entry, entry.event)
            else:
                yield from self._process_event(entry)

    def _is_current(self, entry: RecordOrBatch, time: float) -> bool:
        """Whether the entry is not of an old attempt, which is counted."""
        self.now = self.now or time
        if entry.attempt >= self.attempt:
            return True
        ranks = entry_ranks(entry)
        self.counters.add("sentinel_dropped_records_total", "old_attempt", len(ranks))
        return False

    def _process_values(self, entry: RecordOrBatch, event: Event) -> Iterator[Record]:
        self.attempt = max(self.attempt, entry.attempt)
        yield from self._report(self.steps.add(entry, event, self.now, self.counters))

    def _process_heartbeat(self, heartbeat: Record) -> Iterator[Record]:
        self.now = heartbeat.time
        self.steps.membership.update_from_heartbeat(heartbeat, self.attempt)
        yield from self._report(self.steps.close_complete(self.now))
        has_ended = heartbeat.attributes.get("state") in ENDED_STATES
        yield from self._report_run_stop(has_ended=has_ended)
        yield heartbeat

    def _process_event(self, record: Record) -> Iterator[Record]:
        """Handle a record of one rank that does not wait for others."""
        self.steps.membership.mark_reachable([record.rank])
        if record.event not in _HELD_EVENTS or not self.steps.hold(record):
            yield from self._report_event(record)

    def _report_event(self, record: Record) -> Iterator[Record]:
        """Handle a record of one rank that is not held."""
        if record.event is METADATA:
            self.steps.metadata.update_metadata(record.attributes)
            if is_collective_turned_off(record):
                self.steps.membership.started_at = self.now
        if record.event is START:
            yield from self._process_start(record)
        elif record.event is STOP:
            yield from self._process_stop(record)
        elif record.event is SAVE:
            # A checkpoint is reported at once, and once, however many ranks write a part of it.
            if record.step_index > self.last_saved_index:
                self.last_saved_index = record.step_index
                yield replace(record, rank=WHOLE_RUN)
        elif record.event not in _COMBINED_ELSEWHERE:
            yield replace(record, rank=WHOLE_RUN)

    def _process_start(self, record: Record) -> Iterator[Record]:
        if record.attempt > self.attempt:
            yield from self._report_run_stop(has_ended=True)
            yield from self._report(self.steps.close_all())
            self._begin_attempt(record.attempt)
            yield replace(record, rank=WHOLE_RUN)
        if self.steps.membership.add_start(record, self.now):
            # The agent of the rank's node reports all its records, those that rank 0 gathered too.
            self.steps.discard_rank(record.rank)
        # A rank that starts late knows less than the others have reported since.
        self.steps.metadata.update_from_start(record)

    def _process_stop(self, record: Record) -> Iterator[Record]:
        if self.steps.membership.add_stop(record):
            yield from self._report(self.steps.close_complete(self.now))
            # In a short run one rank is read to its end before the next is read at all.
            yield from self._report_run_stop()

    def _report_run_stop(self, *, has_ended: bool = False) -> Iterator[Record]:
        """The STOP of the run, behind all steps, if no rank is left, or will start."""
        stop = self.steps.membership.take_run_stop(self.now, has_ended=has_ended)
        if stop is not None:
            yield from self._report(self.steps.close_all())
            yield stop

    def _report(self, closed: Iterable[Record]) -> Iterator[Record]:
        """The combined records; of the ranks' events that were held for one, what they report."""
        for record in closed:
            if record.rank == WHOLE_RUN:
                yield record
            else:
                yield from self._report_event(record)
