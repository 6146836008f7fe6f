"""Member: one node of the run, as the head knows it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat
from math import isfinite
from operator import le
from struct import Struct

from sentinel.cluster.attempt_map import MAX_ATTEMPTS_KEPT
from sentinel.cluster.heartbeats import NodeHeartbeat
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import RecordBatch, RecordOrBatch, iter_records
from sentinel.transport.batch_codec import BatchDecoder, BatchMessage

MIN_CLOCK_SKEW_SECONDS = 5.0
"""Clocks that differ by less are taken as they are: parcels are under way for a part of that."""
MAX_FUTURE_SECONDS = 60.0
MAX_STEP_INDEX_JUMP = 1_000_000
"""How far ahead of its own node's clock, and of all that was heard, a record may be."""

_SEQUENCE_STRUCT = Struct("<qqI")
"""Attempt, rank, and the number of its newest word."""

_NO_RANKS: frozenset[int] = frozenset()
_UNKNOWN_SENDER_SEQUENCE = 1 << 64
"""What no number is beyond: of who was never heard, nothing counts as new."""

Sender = tuple[int, int]
"""An attempt as the node counts it, and a rank."""


@dataclass
class Member:
    """A node, by its `name`, and the correspondence with it.

    `row` is the last of its `spool` that was taken in, `heard` the newest word of each sender by
    number. `skew` is what is added to its clock to have ours, in seconds.
    """

    name: str
    host: str = ""
    slot: int = 0
    spool_id: str = ""
    last_row: int = 0
    last_sequences: dict[Sender, int] = field(default_factory=dict)
    batch_decoder: BatchDecoder = field(default_factory=lambda: BatchDecoder(""))
    last_seen_at: float = 0.0
    """When a parcel last came, by the head's count of seconds that it listened."""
    clock_skew_seconds: float = 0.0
    was_behind: bool = True
    """Whether its clock, if it seems to be behind now, is no surprise."""
    step_index: int = 0
    """The newest heard in this correspondence; 0 before any."""
    heartbeat: Record | None = None
    ranks_by_attempt: dict[int, set[int]] = field(default_factory=dict)
    """Ranks by attempt of the run, of the newest two."""
    start_times: dict[Sender, float] = field(default_factory=dict)
    """When each sender began, by the node's clock."""
    incarnation: int = 0
    """How often it came back without any memory of what it was, and counts from 0 again."""
    ended_by_attempt: dict[int, set[int]] = field(default_factory=dict)
    """Those of them, by attempt, of which the end is known."""
    abandoned_attempt: int | None = None
    """The attempt of the run, if any, in which nobody waits for it any more."""
    has_unsaved_progress: bool = True
    """How far it was heard is stored as it was before."""
    has_unsaved_state: bool = True
    """All else is."""

    @property
    def attempt_key(self) -> str:
        """What its own attempts are known by."""
        return f"{self.name}#{self.incarnation}" if self.incarnation else self.name

    @property
    def has_unsaved_changes(self) -> bool:
        """Whether there is anything to store."""
        return self.has_unsaved_progress or self.has_unsaved_state

    def start_session(self, slot: int, node_info: Mapping[str, str], run: str) -> None:
        """A new correspondence: with the same spool, the rows go on; with another, the words do."""
        self.slot, self.host, self.batch_decoder, self.step_index = (
            slot,
            node_info.get("host", ""),
            BatchDecoder(run),
            0,
        )
        if node_info.get("spool", "") != self.spool_id:
            self.spool_id, self.last_row = node_info.get("spool", ""), 0
        self.has_unsaved_state = True

    def accept_message(
        self, message: BatchMessage, now: float, counters: Counters
    ) -> list[RecordOrBatch]:
        """What is new in it, with times by our clock; attempts are still the node's own."""
        self.has_unsaved_progress = True
        self._update_clock_skew(message.sender_time, now)
        if message.last_row >= message.first_row:
            if message.first_row > self.last_row + 1:
                count_refused(counters, "gap", message.first_row - self.last_row - 1)
                self.step_index = 0
            self.last_row = max(self.last_row, message.last_row)
        taken: list[RecordOrBatch] = []
        for entry in message.entries:
            if isinstance(entry, RecordBatch) and self._accept_record_batch(
                entry, message.sender_time
            ):
                taken.append(self._batch_with_local_times(entry))
                continue
            fresh = (
                record for record in iter_records([entry]) if self._accept_record(record, counters)
            )
            taken += [
                self._with_local_time(record, message.sender_time, counters) for record in fresh
            ]
        return taken

    def add_rank(self, attempt: int, rank: int, *, has_ended: bool = False) -> None:
        """Remember who has spoken, and who has ended, in that attempt of the run."""
        if rank == WHOLE_RUN:
            return
        known = self.ranks_by_attempt.get(attempt)
        if known is None:
            known = self.ranks_by_attempt[attempt] = set()
            for old in sorted(self.ranks_by_attempt)[:-2]:
                del self.ranks_by_attempt[old]
            self.ended_by_attempt = {
                each: ranks
                for each, ranks in self.ended_by_attempt.items()
                if each in self.ranks_by_attempt
            }
        if rank not in known:
            known.add(rank)
            self.has_unsaved_state = True
        if has_ended:
            self.ended_by_attempt.setdefault(attempt, set()).add(rank)
            self.has_unsaved_state = True

    def add_ranks(self, attempt: int, ranks: Iterable[int]) -> None:
        """Remember that these have spoken in it."""
        if not self.ranks_by_attempt.get(attempt, _NO_RANKS).issuperset(ranks):
            for rank in ranks:
                self.add_rank(attempt, rank)

    def unended_ranks(self, attempt: int) -> list[int]:
        """Its ranks in that attempt of the run that have not said how they ended."""
        return sorted(
            self.ranks_by_attempt.get(attempt, _NO_RANKS)
            - self.ended_by_attempt.get(attempt, _NO_RANKS)
        )

    def has_unended_ranks(self, attempt: int) -> bool:
        """Whether there are such."""
        return len(self.ranks_by_attempt.get(attempt, _NO_RANKS)) > len(
            self.ended_by_attempt.get(attempt, _NO_RANKS)
        )

    def node_heartbeat(self, age_seconds: float, *, is_lost: bool) -> NodeHeartbeat | None:
        """Its part of the roll; None before its first TICK. `age` in seconds."""
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
        """Whether nothing is wrong with any row of it; then they count as heard."""
        if max(record_batch.times) > sender_time + MAX_FUTURE_SECONDS or self._is_step_index_jump(
            record_batch.step_index
        ):
            return False
        senders = [(record_batch.attempt, rank) for rank in record_batch.ranks]
        known = map(self.last_sequences.get, senders, repeat(_UNKNOWN_SENDER_SEQUENCE))
        if any(map(le, record_batch.sequences, known)):
            return False
        self.last_sequences.update(zip(senders, record_batch.sequences, strict=True))
        self.step_index = max(self.step_index, record_batch.step_index)
        return True

    def _is_step_index_jump(self, step_index: int) -> bool:
        # A head that was away for days does not know how far they came.
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
        """A rank begins: what began at another time is no repetition, whatever its numbers say."""
        known = self.start_times.get(sender, started_at)
        self.start_times[sender] = started_at
        self.has_unsaved_state = True
        if known != started_at:
            self.incarnation += 1
            self.start_times = {sender: started_at}
            self.last_sequences.clear()

    def _forget_before(self, attempt: int) -> None:
        """Nobody repeats what was said so long ago; a run that begins anew for ever stays small."""
        for book in (self.last_sequences, self.start_times):
            for sender in [each for each in book if each[0] <= attempt]:
                del book[sender]

    def _with_local_time(self, record: Record, sender_time: float, counters: Counters) -> Record:
        """The record with its time by our clock; one of the future is of now."""
        time = record.time
        if time > sender_time + MAX_FUTURE_SECONDS:
            count_refused(counters, "future")
            time = sender_time
        if abs(self.clock_skew_seconds) > MIN_CLOCK_SKEW_SECONDS:
            time += self.clock_skew_seconds
        return record if time == record.time else replace(record, time=time)

    def _batch_with_local_times(self, record_batch: RecordBatch) -> RecordBatch:
        """The sheet with its times by our clock."""
        if abs(self.clock_skew_seconds) <= MIN_CLOCK_SKEW_SECONDS:
            return record_batch
        return replace(
            record_batch,
            times=tuple([time + self.clock_skew_seconds for time in record_batch.times]),
        )

    def _update_clock_skew(self, sender_time: float, local_time: float) -> None:
        """What a parcel was under way makes the difference too large, never too small.

        One alone that seems much too old was under way for long, since an agent was stopped; once
        the next says the same, their clock was set back.
        """
        found = local_time - sender_time
        behind = found > self.clock_skew_seconds + MIN_CLOCK_SKEW_SECONDS
        if behind and self.was_behind:
            self.clock_skew_seconds = found
        elif isfinite(found):
            self.clock_skew_seconds = min(self.clock_skew_seconds, found)
        self.was_behind = behind and not self.was_behind


def count_refused(counters: Counters, reason: str, count: int = 1) -> None:
    """Count what was not taken from another agent."""
    counters.add("sentinel_head_connection_rejected_total", reason, count)


def load_members(connection: sqlite3.Connection) -> dict[str, Member]:
    """The nodes that were heard of before, by name."""
    rows = connection.execute("select name, spool, row, heard, told from node")
    return {
        name: _deserialize(name, spool, row, heard, told) for name, spool, row, heard, told in rows
    }


def save_member(connection: sqlite3.Connection, member: Member) -> None:
    """Keep how far it was heard, and who has spoken and ended."""
    heard = b"".join(
        [_SEQUENCE_STRUCT.pack(*sender, number) for sender, number in member.last_sequences.items()]
    )
    if member.has_unsaved_state:
        connection.execute(
            "insert or replace into node(name, spool, row, heard, told) values(?, ?, ?, ?, ?)",
            (member.name, member.spool_id, member.last_row, heard, _serialize_state(member)),
        )
    else:
        # With each parcel, and there are many.
        connection.execute(
            "update node set row = ?, heard = ? where name = ?",
            (member.last_row, heard, member.name),
        )
    member.has_unsaved_progress = member.has_unsaved_state = False


def _serialize_state(member: Member) -> str:
    return json.dumps(
        {
            "host": member.host,
            "started": [*member.start_times.items()],
            "life": member.incarnation,
            "ranks": {attempt: sorted(ranks) for attempt, ranks in member.ranks_by_attempt.items()},
            "ended": {attempt: sorted(ranks) for attempt, ranks in member.ended_by_attempt.items()},
            "given_up": member.abandoned_attempt,
        }
    )


def _deserialize(
    name: str, spool_id: str, last_row: int, packed_sequences: bytes, state: str
) -> Member:
    told = json.loads(state)
    numbers = _SEQUENCE_STRUCT.iter_unpack(packed_sequences)
    return Member(
        name,
        told["host"],
        spool_id=spool_id,
        last_row=last_row,
        last_sequences={(attempt, rank): number for attempt, rank, number in numbers},
        start_times={(attempt, rank): began for (attempt, rank), began in told["started"]},
        incarnation=told["life"],
        ranks_by_attempt={int(attempt): set(ranks) for attempt, ranks in told["ranks"].items()},
        ended_by_attempt={int(attempt): set(ranks) for attempt, ranks in told["ended"].items()},
        abandoned_attempt=told.get("given_up"),
        has_unsaved_progress=False,
        has_unsaved_state=False,
    )
