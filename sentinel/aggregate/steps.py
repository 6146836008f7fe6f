"""The steps and evaluations of one attempt: those that wait for ranks, and those that are closed.

A step is closed when every expected rank has moved past it, when all have reported and
`settle_seconds` passed without a further record, or `deadline_seconds` after the first record, in
which case the missing ranks are named. Ranks of lost nodes are missing at once, unless the other
ranks wait for them too. A step whose records may be unread in a ring is not closed. Steps close in
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from math import inf

from sentinel.aggregate.combine import combine_ranks
from sentinel.aggregate.rank_membership import RankMembership
from sentinel.aggregate.rank_values import PendingStep, RankValues, merge_record
from sentinel.model.counters import Counters
from sentinel.model.record import Event, Record
from sentinel.model.record_batch import RecordBatch, RecordOrBatch, entry_ranks
from sentinel.signals.run_metadata import RunMetadata

MAX_PENDING_STEPS = 4096
"""Maximum number of steps that wait for ranks; beyond it the oldest is closed, complete or not."""

MAX_CLOSED_STEPS = 256
"""Closed steps whose signals are remembered, so that late values of other signals still count."""

EVENTS_IN_ORDER = (Event.STEP, Event.EVAL, Event.STAGE, Event.TRAINING)
"""Events that wait for all ranks, in the order in which those of one step index close."""
_EVENT_ORDER = {event: order for order, event in enumerate(EVENTS_IN_ORDER)}

StepKey = tuple[int, int]
"""Step index, and the order in which events of one step index close: steps close by their keys."""


@dataclass(slots=True)
class ClosedSteps:
    """The steps and evaluations that are closed; `last_key` is the last of them in closing order.

    `signals_by_step` are the signals of the newest. `evaluating_ranks` are the ranks of the last
    evaluation.
    """

    last_key: StepKey = (-1, 0)
    signals_by_step: dict[StepKey, list[str]] = field(default_factory=dict)
    evaluating_ranks: set[int] = field(default_factory=set)

    def add(self, key: StepKey, signals: Iterable[str]) -> None:
        """Remember that the step is closed, and its signals."""
        self.last_key = max(self.last_key, key)
        self.signals_by_step[key] = [*signals]
        excess = max(0, len(self.signals_by_step) - MAX_CLOSED_STEPS)
        for old in [*islice(self.signals_by_step, excess)]:
            del self.signals_by_step[old]

    def reopens(self, key: StepKey, record: Record, values: RankValues) -> bool:
        """Whether the record opens that step again, although a later one, or this one, is closed.

        Values captured at a step are often sent only when the next step begins, after an evaluation
        between the two; and many trainers evaluate once more after their last step. `values` are
        those of the record.
        """
        if key not in self.signals_by_step:
            return key[0] == self.last_key[0]
        is_repeated_eval = record.event is Event.EVAL and record.rank in self.evaluating_ranks
        if not is_repeated_eval or key != self.last_key:
            return False
        return not {*values.names} & {*self.signals_by_step[key]} <= {"global_step", "epoch"}

    def new_signals(self, key: StepKey, values: RankValues) -> RankValues | None:
        """The values of signals that the closed step does not have, which it has from now on.

        None if there are none, or the step is no longer remembered.
        """
        known = self.signals_by_step.get(key)
        if known is None:
            return None
        new = values.without_signals(known)
        known.extend(new.names)
        return new if new.names else None


@dataclass
class Steps:
    """The only owner of the state of a step; `add` and `close_complete` yield the closed ones.

    `membership` and `metadata` are what is known of the ranks that the steps wait for, and of the
    run. Times are in seconds, by the clock of the heartbeats.
    """

    membership: RankMembership
    metadata: RunMetadata
    deadline_seconds: float
    settle_seconds: float
    pending: dict[StepKey, PendingStep] = field(default_factory=dict)
    closed: ClosedSteps = field(default_factory=ClosedSteps)
    last_step_at: float = 0.0
    step_seconds: float = 0.0
    """Seconds between the last two steps."""
    closing_order: list[StepKey] = field(default_factory=list)
    """The keys of `pending` as a heap."""

    def add(
        self, entry: RecordOrBatch, event: Event, now: float, counters: Counters
    ) -> Iterator[Record]:
        """Add values to their step, and yield the steps that this closes.

        Of values for a closed step, which are added rank by rank, new signals are yielded at once;
        a record without any is counted as late.
        """
        key = entry.step_index, _EVENT_ORDER[event]
        is_closed = key <= self.closed.last_key and key not in self.pending
        if is_closed and isinstance(entry, RecordBatch):
            for record in entry.records():
                yield from self.add(record, event, now, counters)
            return
        self.metadata.observe_keys(entry.values if isinstance(entry, Record) else entry.names)
        if is_closed and isinstance(entry, Record):
            values = merge_record(entry, self.metadata.key_map)
            if not self.closed.reopens(key, entry, values):
                self.membership.mark_started([entry.rank])
                new = self.closed.new_signals(key, values)
                if new is None:
                    counters.add("sentinel_dropped_records_total", "late")
                else:
                    world_size = self.membership.world_size
                    yield combine_ranks(event, [new], (), self.metadata, world_size)
                return
        self.membership.advance(entry_ranks(entry), entry.step_index)
        if key not in self.pending:
            self.pending[key] = PendingStep(now, now)
            heappush(self.closing_order, key)
        self.pending[key].add(entry, now, self.metadata.key_map)
        yield from self.close_complete(now)

    def hold(self, record: Record) -> bool:
        """Hold an event behind the last TRAINING that its rank has reported, if that is pending.

        Whether it is held: `close_complete` and `close_all` yield it after that step.
        """
        order = _EVENT_ORDER[Event.TRAINING]
        trainings = [
            key
            for key, pending in self.pending.items()
            if key[1] == order and record.rank in pending.table_by_rank
        ]
        if trainings:
            self.pending[max(trainings)].held.append(record)
        return bool(trainings)

    def discard_rank(self, rank: int) -> None:
        """Remove that rank's values of all pending steps, and its held events."""
        for pending in self.pending.values():
            pending.discard_rank(rank)
        self.pending = {key: each for key, each in self.pending.items() if each.table_by_rank}
        self.closing_order = sorted(self.pending)

    @property
    def max_step_index(self) -> float:
        """The step index up to which ranks should be read now, so that others are not overtaken.

        Infinite, unless many steps wait for records that have not arrived.
        """
        if len(self.pending) < MAX_PENDING_STEPS // 2 or not self.membership.unread:
            return inf
        return max(self.pending)[0]

    def close_complete(self, now: float) -> Iterator[Record]:
        """Close the oldest steps as far as they are complete, or too many; yield them combined."""
        while self.closing_order and (
            len(self.pending) > MAX_PENDING_STEPS or self._is_complete(self.closing_order[0], now)
        ):
            yield from self._close_oldest()

    def close_all(self) -> Iterator[Record]:
        """Close all steps; yield them combined."""
        while self.closing_order:
            yield from self._close_oldest()

    def _is_complete(self, key: StepKey, now: float) -> bool:
        """Whether the pending step waits for no rank."""
        pending = self.pending[key]
        # The ranks of a slow run report as far apart as its steps are long.
        waiting_since = max(pending.first_received_at, self.membership.last_joined_at)
        is_overdue = now - waiting_since >= max(self.deadline_seconds, 2 * self.step_seconds)
        is_settled = now - pending.last_received_at >= self.settle_seconds
        reported = pending.table_by_rank if is_settled else ()
        return not self.membership.update_awaited(
            pending.awaited_ranks, key[0], now, reported, is_overdue=is_overdue
        )

    def _close_oldest(self) -> Iterator[Record]:
        key = heappop(self.closing_order)
        pending = self.pending.pop(key)
        # Often a single rank evaluates or declares a stage, so no rank is missing.
        event, missing = EVENTS_IN_ORDER[key[1]], list[int]()
        if event is Event.EVAL:
            self.closed.evaluating_ranks = set(pending.table_by_rank)
        elif event is Event.STEP:
            missing = sorted(self.membership.silent_ranks() - pending.table_by_rank.keys())
            previous, self.last_step_at = self.last_step_at, pending.first_received_at
            self.step_seconds = self.last_step_at - previous if previous else 0.0
        combined = combine_ranks(
            event, pending.tables, missing, self.metadata, self.membership.world_size
        )
        self.closed.add(key, combined.values)
        yield combined
        # The ranks of these records may have reported the next training already.
        yield from pending.held
