"""One node of the run, as the head knows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat
from math import isfinite
from operator import le

from sentinel.cluster.attempt_map import MAX_ATTEMPTS_KEPT
from sentinel.cluster.authentication import count_refused
from sentinel.cluster.heartbeats import NodeHeartbeat
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import RecordBatch, RecordOrBatch, iter_records
from sentinel.transport.batch_codec import BatchDecoder, BatchMessage

MIN_CLOCK_SKEW_SECONDS = 5.0
"""Smaller skew is not corrected: part of it is the delay of messages."""
MAX_FUTURE_SECONDS = 60.0
"""How far ahead of the clock of its own node the time of a record may be."""
MAX_STEP_INDEX_JUMP = 1_000_000
"""How far ahead of the newest step index a record may be."""

_NO_RANKS: frozenset[int] = frozenset()
_UNKNOWN_SENDER_SEQUENCE = 1 << 64
"""Exceeds every sequence number: no record of an unknown sender counts as new."""

Sender = tuple[int, int]
"""An attempt, as the node counts it, and a rank."""


@dataclass
class Member:
    """A node, by its `name`, and the state of its session.

    `last_row` is the last row of spool `spool_id` that was received, `last_sequences` the newest
    sequence number of each sender.
    """

    name: str
    host: str = ""
    slot: int = 0
    spool_id: str = ""
    last_row: int = 0
    last_sequences: dict[Sender, int] = field(default_factory=dict)
    batch_decoder: BatchDecoder = field(default_factory=lambda: BatchDecoder(""))
    last_seen_at: float = 0.0
    """When a message last arrived, by the head's listening clock."""
    messages_to_catch_up: int = 0
    """How many more messages must arrive until the node is known to have sent what it had."""
    behind_since: float | None = None
    """Since when it has had records to send, by the head's listening clock."""
    clock_skew_seconds: float = 0.0
    """What is added to times of the node to get times of the local clock."""
    was_behind: bool = True
    """Whether the next message may raise the clock skew: at first, and after one late message."""
    step_index: int = 0
    """The newest step index of this session; 0 before any."""
    heartbeat: Record | None = None
    ranks_by_attempt: dict[int, set[int]] = field(default_factory=dict)
    """Ranks by attempt of the run, for the newest two attempts."""
    start_times: dict[Sender, float] = field(default_factory=dict)
    """When each sender started, by the node's clock."""
    incarnation: int = 0
    """How often the node returned with its attempts counted from 0 again."""
    ended_by_attempt: dict[int, set[int]] = field(default_factory=dict)
    """Those of its ranks, by attempt, that have ended."""
    abandoned_attempt: int | None = None
    """The attempt of the run, if any, in which this node is given up."""
    has_unsaved_progress: bool = True
    """Whether its position and sequence numbers changed since they were stored."""
    has_unsaved_state: bool = True
    """Whether anything else changed."""

    @property
    def attempt_key(self) -> str:
        """The key of its attempts in the attempt map."""
        return f"{self.name}#{self.incarnation}" if self.incarnation else self.name

    @property
    def has_unsaved_changes(self) -> bool:
        """Whether there is anything to store."""
        return self.has_unsaved_progress or self.has_unsaved_state

    def start_session(self, slot: int, node_info: Mapping[str, str], run: str) -> None:
        """Start a session. Rows continue with the same spool, and start at 1 with another."""
        self.slot, self.host = slot, node_info.get("host", "")
        self.batch_decoder, self.step_index = BatchDecoder(run), 0
        self.messages_to_catch_up = 1
        if node_info.get("spool_id", "") != self.spool_id:
            self.spool_id, self.last_row = node_info.get("spool_id", ""), 0
        self.has_unsaved_state = True

    def accept_message(
        self, message: BatchMessage, now: float, counters: Counters
    ) -> list[RecordOrBatch]:
        """The new entries of a message, with times of the local clock and attempts of the node."""
        self.has_unsaved_progress = True
        self.messages_to_catch_up = max(0, self.messages_to_catch_up - 1)
        self._update_clock_skew(message.sender_time, now)
        if message.last_row >= message.first_row:
            if message.first_row > self.last_row + 1:
                count_refused(counters, "gap", message.first_row - self.last_row - 1)
                self.step_index = 0
            self.last_row = max(self.last_row, message.last_row)
        accepted: list[RecordOrBatch] = []
        for entry in message.entries:
            if isinstance(entry, RecordBatch) and self._accept_record_batch(
                entry, message.sender_time
            ):
                accepted.append(self._batch_with_local_times(entry))
                continue
            accepted += [
                self._with_local_time(record, message.sender_time, counters)
                for record in iter_records([entry])
                if self._accept_record(record, counters)
            ]
        return accepted

    def add_rank(self, attempt: int, rank: int, *, has_ended: bool = False) -> None:
        """Add a rank of that attempt of the run, and whether it has ended."""
        if rank == WHOLE_RUN:
            return
        ranks = self.ranks_by_attempt.get(attempt)
        if ranks is None:
            ranks = self.ranks_by_attempt[attempt] = set()
            for old in sorted(self.ranks_by_attempt)[:-2]:
                del self.ranks_by_attempt[old]
            self.ended_by_attempt = {
                each: ended
                for each, ended in self.ended_by_attempt.items()
                if each in self.ranks_by_attempt
            }
        if rank not in ranks:
            ranks.add(rank)
            self.has_unsaved_state = True
        if has_ended:
            self.ended_by_attempt.setdefault(attempt, set()).add(rank)
            self.has_unsaved_state = True

    def add_ranks(self, attempt: int, ranks: Iterable[int]) -> None:
        """Add several running ranks of that attempt of the run."""
        if not self.ranks_by_attempt.get(attempt, _NO_RANKS).issuperset(ranks):
            for rank in ranks:
                self.add_rank(attempt, rank)

    def unended_ranks(self, attempt: int) -> list[int]:
        """Its ranks in that attempt of the run that are not known to have ended."""
        return sorted(
            self.ranks_by_attempt.get(attempt, _NO_RANKS)
            - self.ended_by_attempt.get(attempt, _NO_RANKS)
        )

    def has_unended_ranks(self, attempt: int) -> bool:
        """Whether `unended_ranks` returns any."""
        return len(self.ranks_by_attempt.get(attempt, _NO_RANKS)) > len(
            self.ended_by_attempt.get(attempt, _NO_RANKS)
        )

    def node_heartbeat(self, age_seconds: float, *, is_lost: bool) -> NodeHeartbeat | None:
        """Its part of the run heartbeat; None before its first heartbeat."""
        if self.heartbeat is None:
            return None
        return NodeHeartbeat(
            self.heartbeat,
            self.host,
            self.ranks_by_attempt.get(self.heartbeat.attempt, _NO_RANKS),
            age_seconds,
            is_lost,
        )

    def _accept_record_batch(self, record_batch: RecordBatch, sender_time: float) -> bool:
        """Whether every row is valid and new; then their sequence numbers are recorded."""
        if max(record_batch.times) > sender_time + MAX_FUTURE_SECONDS or self._is_step_index_jump(
            record_batch.step_index
        ):
            return False
        senders = [(record_batch.attempt, rank) for rank in record_batch.ranks]
        last_sequences = map(self.last_sequences.get, senders, repeat(_UNKNOWN_SENDER_SEQUENCE))
        if any(map(le, record_batch.sequences, last_sequences)):
            return False
        self.last_sequences.update(zip(senders, record_batch.sequences, strict=True))
        self.step_index = max(self.step_index, record_batch.step_index)
        return True

    def _is_step_index_jump(self, step_index: int) -> bool:
        # Without a step index of this session there is nothing to compare: the head may have been
        # down for days.
        return self.step_index > 0 and step_index > self.step_index + MAX_STEP_INDEX_JUMP

    def _accept_record(self, record: Record, counters: Counters) -> bool:
        sender = record.attempt, record.rank
        if record.event is Event.START:
            self._update_start_time(sender, record.time)
        if record.sequence:
            if record.sequence <= self.last_sequences.get(sender, 0):
                count_refused(counters, "repeated")
                return False
            if sender not in self.last_sequences:
                self._forget_before(record.attempt - MAX_ATTEMPTS_KEPT)
            self.last_sequences[sender] = record.sequence
        if self._is_step_index_jump(record.step_index):
            count_refused(counters, "future")
            return False
        self.step_index = max(self.step_index, record.step_index)
        return True

    def _update_start_time(self, sender: Sender, started_at: float) -> None:
        """Note the start of a rank. Another start time is a new incarnation, not a repetition."""
        previous = self.start_times.get(sender, started_at)
        self.start_times[sender] = started_at
        self.has_unsaved_state = True
        if previous != started_at:
            self.incarnation += 1
            self.start_times = {sender: started_at}
            self.last_sequences.clear()

    def _forget_before(self, attempt: int) -> None:
        """Forget senders up to that attempt, so that a run with many restarts stays small."""
        for by_sender in (self.last_sequences, self.start_times):
            for sender in [each for each in by_sender if each[0] <= attempt]:
                del by_sender[sender]

    def _with_local_time(self, record: Record, sender_time: float, counters: Counters) -> Record:
        """The record with its time by the local clock; a time in the future becomes now."""
        time = record.time
        if time > sender_time + MAX_FUTURE_SECONDS:
            count_refused(counters, "future")
            time = sender_time
        if abs(self.clock_skew_seconds) > MIN_CLOCK_SKEW_SECONDS:
            time += self.clock_skew_seconds
        return record if time == record.time else replace(record, time=time)

    def _batch_with_local_times(self, record_batch: RecordBatch) -> RecordBatch:
        """The batch with its times by the local clock."""
        if abs(self.clock_skew_seconds) <= MIN_CLOCK_SKEW_SECONDS:
            return record_batch
        return replace(
            record_batch,
            times=tuple([time + self.clock_skew_seconds for time in record_batch.times]),
        )

    def _update_clock_skew(self, sender_time: float, local_time: float) -> None:
        """Update the clock skew: the least difference, since a delay can only increase it.

        A single message that seems much too old was delayed, since its agent was suspended. If the
        next one agrees, the node's clock was set back.
        """
        difference = local_time - sender_time
        is_behind = difference > self.clock_skew_seconds + MIN_CLOCK_SKEW_SECONDS
        if is_behind and self.was_behind:
            self.clock_skew_seconds = difference
        elif isfinite(difference):
            self.clock_skew_seconds = min(self.clock_skew_seconds, difference)
        self.was_behind = is_behind and not self.was_behind
