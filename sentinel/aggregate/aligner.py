"""Aligns the records of all ranks at one step and combines them into one record of the run.

Ranks are aligned by attempt and step index, which only grow; the trainer's own step number is
carried along and may be wrong. A step is closed when every expected rank has moved past it, when
all have reported and `settle_seconds` passed without a further record, or `deadline_seconds` after
the first record, in which case the missing ranks are named. Ranks of lost nodes are missing at
once, unless the other ranks wait for them too. A step whose records may be unread in a ring is
not closed. Steps close in order. The clock is that of the heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from sentinel.aggregate.combine import combine_ranks, with_hosts
from sentinel.aggregate.pending_step import ClosedSteps, PendingStep, StepKey
from sentinel.aggregate.rank_membership import RankMembership
from sentinel.aggregate.rank_values import RankValues, merge_record
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record, is_collective_turned_off
from sentinel.model.record_batch import RecordBatch, RecordOrBatch, entry_ranks
from sentinel.signals.run_metadata import RunMetadata

MAX_PENDING_STEPS = 4096
"""Maximum number of steps that wait for ranks; beyond it the oldest is closed, complete or not."""

ENDED_STATES = frozenset({"finished", "failed", "died"})
"""States of a heartbeat when no rank is left."""

_EVENTS_IN_ORDER = (Event.STEP, Event.EVAL, Event.STAGE, Event.TRAINING)
_EVENT_ORDER = {event: order for order, event in enumerate(_EVENTS_IN_ORDER)}
"""Events that wait for all ranks, and the order in which those of one step index close."""

_HELD_EVENTS = (Event.METADATA, Event.SAVE)
"""Events that must not be taken for those of the training before."""

_COMBINED_ELSEWHERE = frozenset({Event.SAMPLE, Event.LAYERS})
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
    metadata: RunMetadata = field(default_factory=RunMetadata)
    membership: RankMembership = field(init=False)
    pending_steps: dict[StepKey, PendingStep] = field(default_factory=dict)
    closed_steps: ClosedSteps = field(default_factory=ClosedSteps)
    last_awaited_rank: int = WHOLE_RUN
    """A rank that was awaited when all ranks were last checked."""
    last_step_at: float = 0.0
    step_seconds: float = 0.0
    """Seconds between the last two steps."""
    last_saved_index: int = -1
    held_by_training: dict[StepKey, list[Record]] = field(default_factory=dict)
    """Events of trainings whose TRAINING is not closed yet, by its key."""

    def __post_init__(self) -> None:
        self.membership = RankMembership(self.deadline_seconds)
        self.configure_keys(self.keys)

    def configure_keys(self, keys: Mapping[str, str]) -> None:
        """Take over the keys of the settings."""
        self.keys = dict(keys)
        self.metadata.configure_keys(keys)

    @property
    def max_step_index(self) -> float:
        """The step index up to which ranks should be read now, so that others are not overtaken.

        Infinite, unless many steps wait for records that have not arrived.
        """
        if len(self.pending_steps) < MAX_PENDING_STEPS // 2 or not self.membership.unread:
            return inf
        return max(self.pending_steps)[0]

    def process(self, entry: RecordOrBatch) -> Iterator[Record]:
        """Add a record or batch; yield the record, then the combined records it completes."""
        if isinstance(entry, RecordBatch):
            if self._is_current(entry, entry.times[0]):
                yield from self._process_values(entry, entry.ranks, Event.STEP)
        elif entry.event is Event.HEARTBEAT:
            yield from self._process_heartbeat(entry)
        elif entry.rank == WHOLE_RUN:
            # Read from a log: a record of the run already.
            yield entry
        elif self._is_current(entry, entry.time):
            yield entry
            if entry.event in _EVENT_ORDER:
                yield from self._process_values(entry, (entry.rank,), entry.event)
            else:
                yield from self._process_event(entry)

    def _is_current(self, entry: RecordOrBatch, time: float) -> bool:
        """Whether the entry is not of an old attempt, which is counted; its ranks are not lost."""
        self.now = self.now or time
        ranks = entry_ranks(entry)
        if entry.attempt < self.attempt:
            self.counters.add("sentinel_dropped_records_total", "old_attempt", len(ranks))
            return False
        self.membership.lost.difference_update(ranks)
        return True

    def _process_heartbeat(self, heartbeat: Record) -> Iterator[Record]:
        self.now = heartbeat.time
        self.membership.update_from_heartbeat(heartbeat, self.attempt)
        yield from self._close_ready_steps()
        if heartbeat.attributes.get("state") in ENDED_STATES or self.membership.is_final(self.now):
            yield from self._report_run_stop()
        yield heartbeat

    def _process_event(self, record: Record) -> Iterator[Record]:
        """Handle a record of one rank that does not wait for others."""
        if record.event in _HELD_EVENTS:
            training = self._last_pending_training(record.rank)
            if training is not None:
                self.held_by_training.setdefault(training, []).append(record)
                return
        yield from self._report_event(record)

    def _report_event(self, record: Record) -> Iterator[Record]:
        """Handle a record of one rank that is not held."""
        if record.event is Event.METADATA:
            self.metadata.update_metadata(record.attributes)
            if is_collective_turned_off(record):
                self.membership.started_at = self.now
        if record.event is Event.START:
            yield from self._process_start(record)
        elif record.event is Event.STOP:
            yield from self._process_stop(record)
        elif record.event is Event.SAVE:
            # A checkpoint is reported at once, and once, however many ranks write a part of it.
            if record.step_index > self.last_saved_index:
                self.last_saved_index = record.step_index
                yield replace(record, rank=WHOLE_RUN)
        elif record.event not in _COMBINED_ELSEWHERE:
            yield replace(record, rank=WHOLE_RUN)

    def _last_pending_training(self, rank: int) -> StepKey | None:
        """The last TRAINING that the rank has reported and that is not closed; None without one."""
        trainings = (
            key
            for key, pending in self.pending_steps.items()
            if key[1] == _EVENT_ORDER[Event.TRAINING] and rank in pending.reported_ranks
        )
        return max(trainings, default=None)

    def _process_start(self, record: Record) -> Iterator[Record]:
        if record.attempt > self.attempt:
            yield from self._report_run_stop()
            yield from self._close_all_steps()
            self._reset(record.attempt)
            yield replace(record, rank=WHOLE_RUN)
        if self.membership.add_start(record, self.now):
            # The agent of the rank's node reports all its records, those that rank 0 gathered too.
            self._discard_rank(record.rank)
        # A rank that starts late knows less than the others have reported since.
        self.metadata.update_from_start(record)

    def _reset(self, attempt: int) -> None:
        self.attempt = attempt
        self.metadata = RunMetadata()
        self.metadata.configure_keys(self.keys)
        self.membership = RankMembership(self.deadline_seconds, started_at=self.now)
        self.pending_steps, self.closed_steps = {}, ClosedSteps()
        self.held_by_training = {}
        self.last_step_at, self.step_seconds, self.last_saved_index = 0.0, 0.0, -1

    def _discard_rank(self, rank: int) -> None:
        for pending in self.pending_steps.values():
            pending.discard_rank(rank)
        self.pending_steps = {k: p for k, p in self.pending_steps.items() if p.reported_ranks}
        self.held_by_training = {
            key: [each for each in held if each.rank != rank]
            for key, held in self.held_by_training.items()
            if key in self.pending_steps
        }

    def _process_stop(self, record: Record) -> Iterator[Record]:
        if not self.membership.add_stop(record):
            return
        yield from self._close_ready_steps()
        # In a short run one rank is read to its end before the next is read at all.
        if self.membership.is_final(self.now):
            yield from self._report_run_stop()

    def _report_run_stop(self) -> Iterator[Record]:
        stop = self.membership.take_run_stop()
        if stop is not None:
            yield from self._close_all_steps()
            yield stop

    def _process_values(
        self, entry: RecordOrBatch, ranks: Sequence[int], event: Event
    ) -> Iterator[Record]:
        """Add values to their pending step, or handle them as late ones, rank by rank."""
        key = entry.step_index, _EVENT_ORDER[event]
        is_closed = key <= self.closed_steps.last_key and key not in self.pending_steps
        if is_closed and isinstance(entry, RecordBatch):
            for record in entry.records():
                yield from self._process_values(record, (record.rank,), event)
            return
        self.membership.started.update(ranks)
        self.attempt = max(self.attempt, entry.attempt)
        self.metadata.observe_keys(entry.values if isinstance(entry, Record) else entry.names)
        if is_closed and isinstance(entry, Record):
            values = merge_record(entry, self.metadata.key_map)
            if not self.closed_steps.reopens(key, entry, values):
                yield from self._process_late_values(key, event, values)
                return
        self.membership.add_values(ranks, entry.step_index)
        pending = self.pending_steps.setdefault(key, PendingStep(self.now, self.now))
        pending.add(entry, self.now, self.metadata.key_map)
        yield from self._close_ready_steps()

    def _process_late_values(
        self, key: StepKey, event: Event, values: RankValues
    ) -> Iterator[Record]:
        """Yield the values of signals that the closed step does not have; count the others."""
        new = self.closed_steps.new_signals(key, values)
        if new is None:
            self.counters.add("sentinel_dropped_records_total", "late")
            return
        yield combine_ranks(event, [new], (), self.metadata.metadata, self.membership.world_size)

    def _close_ready_steps(self) -> Iterator[Record]:
        too_many = len(self.pending_steps) > MAX_PENDING_STEPS
        if not too_many and not self.membership.is_complete(self.now):
            return
        for key in sorted(self.pending_steps):
            too_many = len(self.pending_steps) > MAX_PENDING_STEPS
            if not too_many and not self._is_ready(key[0], self.pending_steps[key]):
                return
            yield from self._close_step(key)

    def _is_ready(self, step_index: int, pending: PendingStep) -> bool:
        if self.membership.has_unread_records(step_index):
            return False
        # The ranks of a slow run report as far apart as its steps are long.
        waiting_since = max(pending.first_received_at, self.membership.last_joined_at)
        if self.now - waiting_since >= max(self.deadline_seconds, 2 * self.step_seconds):
            return True
        is_settled = self.now - pending.last_received_at >= self.settle_seconds
        # With very many ranks it is too slow to check all of them at each record.
        has_reported = is_settled and self.last_awaited_rank in pending.reported_ranks
        if self._is_awaited(self.last_awaited_rank, step_index) and not has_reported:
            return False
        awaited = {r for r in self.membership.started if self._is_awaited(r, step_index)}
        unreported = awaited - pending.reported_ranks
        self.last_awaited_rank = next(iter(unreported or awaited), WHOLE_RUN)
        return not awaited or (is_settled and not unreported)

    def _is_awaited(self, rank: int, step_index: int) -> bool:
        return self.membership.is_awaited(rank, step_index, self.now)

    def _close_step(self, key: StepKey) -> Iterator[Record]:
        pending = self.pending_steps.pop(key)
        # Often a single rank evaluates or declares a stage, so no rank is missing.
        event, missing = _EVENTS_IN_ORDER[key[1]], list[int]()
        if event is Event.EVAL:
            self.closed_steps.evaluating_ranks = set(pending.reported_ranks)
        elif event is Event.STEP:
            missing = sorted(self.membership.silent_ranks() - pending.reported_ranks)
            previous, self.last_step_at = self.last_step_at, pending.first_received_at
            self.step_seconds = self.last_step_at - previous if previous else 0.0
        combined = combine_ranks(
            event, pending.tables, missing, self.metadata.metadata, self.membership.world_size
        )
        self.closed_steps.add(key, combined.values)
        yield with_hosts(combined, self.metadata.host_by_rank)
        if event is Event.TRAINING:
            # The ranks of these records may have reported the next training already.
            for record in self.held_by_training.pop(key, ()):
                yield from self._report_event(record)

    def _close_all_steps(self) -> Iterator[Record]:
        for key in sorted(self.pending_steps):
            yield from self._close_step(key)
