"""Align: the ranks' records of one step brought together into one record for the run.

Ranks are aligned by attempt and beat, which only grow; the trainer's own step number travels along
and may misbehave. A step is closed when every rank expected has moved past it, when all have
spoken and `settle` seconds passed without a further word, or `deadline` seconds after the first
word, and then the missing ranks are named. Ranks of lost nodes are missing at once. Steps close in
order. Time is what TICK records say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sentinel.aggregate.pending_step import ClosedSteps, PendingStep, StepKey, without_rank
from sentinel.aggregate.rank_values import RankValues
from sentinel.aggregate.reduce import combine_ranks, with_hosts
from sentinel.model.counters import Counters
from sentinel.model.record import UNKNOWN_OUTCOME, WHOLE_RUN, Event, Record
from sentinel.model.record_batch import RecordBatch, RecordOrBatch
from sentinel.signals.run_metadata import (
    RunMetadata,
    is_collective_handover,
    is_collective_turned_off,
)

MAX_PENDING_STEPS = 4096
"""Steps held open at most; beyond it the oldest is closed as it stands."""

ENDED_STATES = frozenset({"finished", "failed", "died"})
"""States of which a TICK tells once no rank is left."""

_EVENT_ORDER = {Event.STEP: 0, Event.EVAL: 1}
"""Events that ranks are waited for in, and which of one beat closes first."""

NODE_JOIN_SECONDS = 30.0
"""How long the ranks of other nodes are waited for at a start: their agents must find ours."""


@dataclass
class Aligner:
    """Turns records of single ranks into the run's; `feed` yields whatever a record completes.

    Records of single ranks are passed on unchanged, ahead of what they complete; those of a sheet
    are not. `deadline` and `settle` are in seconds.
    """

    counters: Counters = field(default_factory=Counters)
    deadline_seconds: float = 10.0
    settle_seconds: float = 0.5

    attempt: int = -1
    now: float = 0.0
    started_at: float = 0.0
    expected_ranks: int = 0
    join_seconds: float = 0.0
    last_joined_at: float = 0.0
    """Where ranks are on other nodes: seconds given to begin; when the last began, or was away."""
    world_size: int = 0
    """Ranks of the whole run, as they say themselves."""
    metadata: RunMetadata = field(default_factory=RunMetadata)
    started_ranks: set[int] = field(default_factory=set)
    directly_reported_ranks: set[int] = field(default_factory=set)
    """Those of them that their own node's agent told of."""
    stop_attributes_by_rank: dict[int, dict[str, str]] = field(default_factory=dict)
    """What each rank that ended said of it, in the order they ended."""
    lost_ranks: set[int] = field(default_factory=set)
    """Ranks of nodes that are not heard."""
    awaited_rank: int = WHOLE_RUN
    """A rank that was waited for, the last time that all were looked at."""
    step_index_by_rank: dict[int, int] = field(default_factory=dict)
    pending_steps: dict[StepKey, PendingStep] = field(default_factory=dict)
    closed_steps: ClosedSteps = field(default_factory=ClosedSteps)
    last_step_at: float = 0.0
    step_seconds: float = 0.0
    """Seconds between the last two steps."""
    last_saved_index: int = -1
    unreported_stop: Record | None = None
    """The newest end of a rank, while that of the run was not told."""

    def process(self, entry: RecordOrBatch) -> Iterator[Record]:
        """Take one entry in; yield it, then the combined records it completes, in order."""
        if isinstance(entry, RecordBatch):
            yield from self._process_batch(entry)
        elif entry.event is Event.HEARTBEAT:
            yield from self._process_heartbeat(entry)
        else:
            yield from self._process_record(entry)

    def _process_record(self, record: Record) -> Iterator[Record]:
        if record.rank == WHOLE_RUN:
            # Of a log that is followed: it is the run's already.
            yield record
            return
        # Before the first tick a record's own clock is all there is.
        self.now = self.now or record.time
        if record.attempt < self.attempt:
            self.counters.add("sentinel_dropped_records_total", "old_attempt")
            return
        yield record
        self.lost_ranks.discard(record.rank)
        if record.event is Event.METADATA:
            self.metadata.update_metadata(record.attributes)
            self.started_at = self.now if is_collective_turned_off(record) else self.started_at
        if record.event is Event.START:
            yield from self._process_start(record)
        elif record.event is Event.STOP:
            yield from self._process_stop(record)
        elif record.event in _EVENT_ORDER:
            yield from self._process_values(record)
        elif record.event is Event.SAVE:
            yield from self._process_save(record)
        elif record.event is not Event.SAMPLE:
            yield replace(record, rank=WHOLE_RUN)

    def _process_heartbeat(self, record: Record) -> Iterator[Record]:
        self.now = record.time
        self.last_joined_at = (
            self.now if record.attributes.get("unreachable_ranks") else self.last_joined_at
        )
        self._update_lost_ranks(record)
        yield from self._close_ready_steps()
        if record.attributes.get("state") in ENDED_STATES or self._is_membership_final():
            yield from self._report_run_stop()
        yield record

    def _update_lost_ranks(self, heartbeat: Record) -> None:
        """Wait no longer for the ranks that a TICK tells to be lost: all others may have ended."""
        told = heartbeat.attributes.get("lost_ranks") if heartbeat.attempt == self.attempt else None
        self.lost_ranks = {int(rank) for rank in told.split(",")} if told else set()

    def _process_start(self, record: Record) -> Iterator[Record]:
        if record.attempt > self.attempt:
            yield from self._report_run_stop()
            yield from self._close_all_steps()
            self._reset(record.attempt)
            yield replace(record, rank=WHOLE_RUN)
        self.started_ranks.add(record.rank)
        if "via_collective" not in record.attributes:
            self.directly_reported_ranks.add(record.rank)
            if record.rank in self.step_index_by_rank:
                # What it said was gathered, and now its own node's agent tells all of it.
                self.pending_steps = without_rank(record.rank, self.pending_steps)
        # A command that failed before any rank began was told of in this rank's name.
        self.stop_attributes_by_rank.pop(record.rank, None)
        local = int(record.values.get("local_world_size", 1))
        expected = int(record.values.get("expected_ranks", local))
        self.expected_ranks = max(self.expected_ranks, expected)
        if expected > local:
            self.join_seconds, self.last_joined_at = NODE_JOIN_SECONDS, self.now
        self.world_size = max(self.world_size, int(record.values.get("world_size", 1)))
        # A rank that starts late knows less than what the others have found out by then.
        self.metadata.update_from_start(record)

    def _reset(self, attempt: int) -> None:
        self.attempt, self.started_at, self.expected_ranks = attempt, self.now, 0
        self.join_seconds, self.last_joined_at, self.world_size, self.metadata = (
            0.0,
            0.0,
            0,
            RunMetadata(),
        )
        for book in (
            self.started_ranks,
            self.directly_reported_ranks,
            self.stop_attributes_by_rank,
            self.lost_ranks,
            self.step_index_by_rank,
            self.pending_steps,
        ):
            book.clear()
        self.closed_steps, self.last_step_at, self.step_seconds, self.last_saved_index = (
            ClosedSteps(),
            0.0,
            0.0,
            -1,
        )
        self.unreported_stop = None

    def _process_save(self, record: Record) -> Iterator[Record]:
        """A checkpoint is told at once, and once, however many ranks wrote a part of it."""
        if record.step_index > self.last_saved_index:
            self.last_saved_index = record.step_index
            yield replace(record, rank=WHOLE_RUN)

    def _process_stop(self, record: Record) -> Iterator[Record]:
        if is_collective_handover(record):
            # By those who tell of it from now on, it may have been met already.
            self.started_ranks -= {record.rank} - self.directly_reported_ranks
            return
        self.stop_attributes_by_rank.setdefault(record.rank, dict(record.attributes))
        self.unreported_stop = record
        yield from self._close_ready_steps()
        # Of a short run one rank is read to its end before another is heard at all.
        yield from self._report_run_stop() if self._is_membership_final() else ()

    def _report_run_stop(self) -> Iterator[Record]:
        """Tell how the run ended, if all that began did and that was not told."""
        all_ended = (
            self.stop_attributes_by_rank
            and self.started_ranks - self.lost_ranks <= self.stop_attributes_by_rank.keys()
        )
        if self.unreported_stop is not None and all_ended:
            last, self.unreported_stop = self.unreported_stop, None
            yield from self._close_all_steps()
            yield self._run_stop_record(last)

    def _run_stop_record(self, last: Record) -> Record:
        # The first rank to fall is the cause; those after it were taken along.
        # One that is unknown says nothing of the run.
        known = [
            facts
            for facts in self.stop_attributes_by_rank.values()
            if facts.get("outcome") != UNKNOWN_OUTCOME
        ]
        bad = (facts for facts in known if facts.get("outcome") != "finished")
        cause = next(bad, known[-1] if known and last.attributes not in known else last.attributes)
        alike = [rank for rank, facts in self.stop_attributes_by_rank.items() if facts == cause]
        return replace(
            last, rank=WHOLE_RUN, attributes={**cause, "ranks": ",".join(map(str, alike))}
        )

    def _process_batch(self, batch: RecordBatch) -> Iterator[Record]:
        """What several ranks say of a step that is still open at one go, all else one by one."""
        self.now = self.now or batch.times[0]
        if batch.attempt < self.attempt:
            self.counters.add("sentinel_dropped_records_total", "old_attempt", len(batch.ranks))
            return
        self.lost_ranks.difference_update(batch.ranks)
        place = batch.step_index, _EVENT_ORDER[Event.STEP]
        if place <= self.closed_steps.last_key and place not in self.pending_steps:
            for record in batch.records():
                yield from self._process_values(record)
            return
        self.started_ranks.update(batch.ranks)
        self.attempt = max(self.attempt, batch.attempt)
        self.metadata.detect_framework(batch.names)
        behind = [
            rank for rank in batch.ranks if self.step_index_by_rank.get(rank, -1) < batch.step_index
        ]
        self.step_index_by_rank.update(dict.fromkeys(behind, batch.step_index))
        yield from self._add_to_pending_step(place, batch)

    def _add_to_pending_step(self, place: StepKey, entry: RecordOrBatch) -> Iterator[Record]:
        moment = self.pending_steps.setdefault(place, PendingStep(self.now, self.now))
        moment.add(entry, self.now, self.metadata.key_map)
        yield from self._close_ready_steps()

    def _process_values(self, record: Record) -> Iterator[Record]:
        self.started_ranks.add(record.rank)
        self.attempt = max(self.attempt, record.attempt)
        self.metadata.detect_framework(record.values)
        place = record.step_index, _EVENT_ORDER[record.event]
        if place <= self.closed_steps.last_key and place not in self.pending_steps:
            said = RankValues(record)
            said.add(record, self.metadata.key_map)
            if not self.closed_steps.reopens(place, record, said):
                yield from self._process_late_values(place, record, said)
                return
        self.step_index_by_rank[record.rank] = max(
            record.step_index, self.step_index_by_rank.get(record.rank, -1)
        )
        yield from self._add_to_pending_step(place, record)

    def _process_late_values(
        self, place: StepKey, record: Record, values: RankValues
    ) -> Iterator[Record]:
        """A word on a closed moment: judged where it is news, else only counted."""
        if not self.closed_steps.discard_reported(place, values):
            self.counters.add("sentinel_dropped_records_total", "late")
            return
        yield combine_ranks(
            record.event, {record.rank: values}, (), self.metadata.metadata, self.world_size
        )

    def _close_ready_steps(self) -> Iterator[Record]:
        if len(self.pending_steps) <= MAX_PENDING_STEPS and not self._has_all_ranks_or_timed_out():
            return
        for place in sorted(self.pending_steps):
            if len(self.pending_steps) <= MAX_PENDING_STEPS and not self._is_ready(
                place, self.pending_steps[place]
            ):
                return
            yield self._close_step(place)

    def _is_ready(self, place: StepKey, pending: PendingStep) -> bool:
        # A slow run's ranks speak as far apart as its steps are long.
        heard = max(pending.first_received_at, self.last_joined_at)
        if self.now - heard >= max(self.deadline_seconds, 2 * self.step_seconds):
            return True
        settled = self.now - pending.last_received_at >= self.settle_seconds
        # With very many ranks all of them are looked at but seldom.
        enough = settled and self.awaited_rank in pending.reported_ranks
        if self._is_awaited(self.awaited_rank, place[0]) and not enough:
            return False
        waiting = {rank for rank in self.started_ranks if self._is_awaited(rank, place[0])}
        unheard = waiting - pending.reported_ranks
        self.awaited_rank = next(iter(unheard or waiting), WHOLE_RUN)
        return not waiting or (settled and not unheard)

    def _is_awaited(self, rank: int, step_index: int) -> bool:
        """Whether that rank may yet speak of that beat: long silent, it leaves that to others."""
        if (
            rank in self.stop_attributes_by_rank
            or rank in self.lost_ranks
            or rank not in self.started_ranks
        ):
            return False
        return (
            self.step_index_by_rank[rank] <= step_index
            if rank in self.step_index_by_rank
            else not self._is_start_timed_out()
        )

    def _has_all_ranks_or_timed_out(self) -> bool:
        return self._has_all_ranks() or self._is_start_timed_out()

    def _has_all_ranks(self) -> bool:
        return (
            len(self.started_ranks) + len(self.lost_ranks - self.started_ranks)
            >= self.expected_ranks
        )

    def _is_membership_final(self) -> bool:
        """Whether nobody is to be heard for the first time; of other nodes, their TICK will say."""
        return self._has_all_ranks() if self.join_seconds else self._has_all_ranks_or_timed_out()

    def _is_start_timed_out(self) -> bool:
        """Whether a rank that has not spoken by now is one without sentinel: not waited for."""
        return self.now - self.started_at >= max(self.deadline_seconds, self.join_seconds)

    def _close_step(self, place: StepKey) -> Record:
        moment = self.pending_steps.pop(place)
        silent = (
            (self.step_index_by_rank.keys() | self.lost_ranks)
            - self.stop_attributes_by_rank.keys()
            - moment.reported_ranks
        )
        # An evaluation is often one rank's alone.
        event, missing = Event.EVAL, []
        if place[1] == _EVENT_ORDER[Event.EVAL]:
            self.closed_steps.evaluating_ranks = moment.reported_ranks
        else:
            event, missing = Event.STEP, sorted(silent)
            self.step_seconds = (
                moment.first_received_at - self.last_step_at if self.last_step_at else 0.0
            )
            self.last_step_at = moment.first_received_at
        facts, world = self.metadata.metadata, self.world_size
        combined = combine_ranks(
            event, moment.values_by_rank, missing, facts, world, value_batches=moment.value_batches
        )
        self.closed_steps.add(place, combined.values)
        return with_hosts(combined, self.metadata.host_by_rank)

    def _close_all_steps(self) -> Iterator[Record]:
        for place in sorted(self.pending_steps):
            yield self._close_step(place)
