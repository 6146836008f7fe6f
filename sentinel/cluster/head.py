"""Head: the records of all nodes as those of one run, for the agent that judges it.

What arrives of the others is taken in the order of each rank; its attempts become the run's, its
times are by our clock. How far each was heard is stored in the transaction that judges what was
heard, and confirmed only after: so nothing is lost, and nothing is taken twice.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from sentinel.aggregate.aligner import ENDED_STATES
from sentinel.cluster.attempt_map import Attempt, AttemptMap
from sentinel.cluster.gathered_ranks import GatheredRanks
from sentinel.cluster.heartbeats import NodeHeartbeat, merge_heartbeats
from sentinel.cluster.member import Member, count_refused
from sentinel.cluster.membership import ABANDON_AFTER_SECONDS, OWN_NODE_NAME, Membership
from sentinel.cluster.node_hardware import NodeHardware
from sentinel.cluster.server import ClusterServer, Hello
from sentinel.cluster.validation import is_valid_node_info, validate_message
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import RecordOrBatch, coalesce, iter_records
from sentinel.transport.batch_codec import BatchMessage, BatchMessageError

YIELD_WINDOW_SECONDS = 120.0
"""How long a head that just began would rather give way to one that has judged the run before."""


@dataclass
class Head:
    """Brings the nodes of `run` together; ours is `host`. `clock` gives seconds since the epoch."""

    run: str
    host: str
    connection: sqlite3.Connection
    server: ClusterServer
    counters: Counters
    clock: Callable[[], float] = time.time
    node_hardware: NodeHardware = field(default_factory=NodeHardware)
    established_head: str = ""
    """The address of another head of this run, that has judged it for longer."""
    is_shutting_down: bool = False
    """Whether this is our last turn: what is still open will not be decided by us."""
    _pending_acks: dict[int, tuple[int, int]] = field(default_factory=dict)
    _deputy_slot: int = 0

    def __post_init__(self) -> None:
        self.membership = Membership(self.host, self.connection, self.clock)
        self.gathered_ranks = GatheredRanks(self.membership)
        query = "select value from cluster where key = 'generations'"
        row = self.connection.execute(query).fetchone()
        self._stored_attempt_map = row[0] if row else ""
        self.attempt_map = AttemptMap.deserialize(self._stored_attempt_map)
        # All that we judged so far, while another may have to judge it instead.
        self._early_records: list[Record] | None = None if self._stored_attempt_map else []

    def start_at_attempt(self, attempt: int) -> None:
        """Our own node is in that attempt of its own, and those before it were the run's."""
        if not self._stored_attempt_map and attempt > 0:
            self.attempt_map.attempts[attempt - 1] = Attempt()
            self.attempt_map.node_attempts[OWN_NODE_NAME] = {attempt - 1: attempt - 1}
            self._early_records = None

    def merge(self, local_entries: Iterable[RecordOrBatch]) -> list[RecordOrBatch]:
        """What our own node said and all that arrived, as the run's."""
        now = self.clock()
        self.membership.listening_clock.advance()
        for hello in self.server.drain_hellos():
            self._register_node(hello)
        local_entries = [*local_entries]
        self._update_early_records(local_entries)
        entries: list[RecordOrBatch] = []
        ticked = False
        for entry in local_entries:
            if isinstance(entry, Record) and entry.event is Event.HEARTBEAT:
                ticked = True
            entries += self._assign_attempt(self.membership.own_member, entry)
        for slot, data in self.server.drain_messages():
            entries += self._decode_message(slot, data, now)
        if ticked:
            entries += self._merge_heartbeats(now)
        return coalesce(entries)

    def persist(self) -> None:
        """Store how far each node was heard, within the caller's transaction."""
        self.membership.persist()
        kept = self.attempt_map.serialize()
        if kept != self._stored_attempt_map:
            self._stored_attempt_map = kept
            self.connection.execute(
                "insert or replace into cluster(key, value) values('generations', ?)", (kept,)
            )

    def after_commit(self) -> None:
        """All that was taken is safe: confirm it."""
        while self._pending_acks:
            slot, (number, row) = self._pending_acks.popitem()
            self.server.acknowledge(slot, number, row, is_deputy=slot == self._deputy_slot)

    @property
    def has_unsaved_changes(self) -> bool:
        """Whether there is anything to store."""
        return self.membership.has_unsaved_changes

    @property
    def finished(self) -> bool:
        """Whether no node has anything to say any more."""
        waits = (
            any(self.membership.unended_members(self.attempt_map.current))
            or self._has_missing_ranks()
        )
        return not waits and not self.gathered_ranks.is_awaiting_ranks

    def node_status(self) -> list[dict[str, Any]]:
        """Each node in plain words; see `Roster.told`."""
        return self.membership.node_status(self.attempt_map.current)

    def has_seen_rank(self, rank: int) -> bool:
        """Whether that rank has spoken in the newest attempt."""
        attempt = self.attempt_map.current
        present = self.membership.present_members(attempt)
        return any(rank in member.ranks_by_attempt.get(attempt, ()) for member in present)

    @property
    def early_records(self) -> list[Record] | None:
        """Our node's records so far, if we began just now and no other node has come to us yet."""
        return self._early_records

    def _update_early_records(self, local_entries: Iterable[RecordOrBatch]) -> None:
        if (
            self.membership.by_slot
            or self.membership.listening_clock.seconds >= YIELD_WINDOW_SECONDS
        ):
            self._early_records = None
        if self._early_records is not None:
            said = iter_records(local_entries)
            self._early_records += (
                record for record in said if record.event is not Event.HEARTBEAT
            )

    def _register_node(self, hello: Hello) -> None:
        if not is_valid_node_info(hello.node_info):
            count_refused(self.counters, "damaged")
            self.server.drop_slot(hello.slot)
            return
        if "elder" in hello.node_info:
            self.established_head = hello.node_info["elder"]
            self.server.drop_slot(hello.slot)
            return
        member, before = self.membership.join(hello.slot, hello.node_info, self.run)
        if before:
            self.server.drop_slot(before)
            self._pending_acks.pop(before, None)
        self.node_hardware.expected_nodes = max(
            self.node_hardware.expected_nodes, 1 + len(self.membership.by_slot)
        )
        self._pending_acks[hello.slot] = 0, member.last_row

    def _decode_message(
        self, slot: int, message_bytes: bytes, now: float
    ) -> Iterator[RecordOrBatch]:
        member = self.membership.by_slot.get(slot)
        if member is None:
            return
        try:
            parcel = member.batch_decoder.decode(message_bytes)
            validate_message(parcel)
        except BatchMessageError as refusal:
            count_refused(self.counters, refusal.reason)
            # What explains the next one may have been in it: it has to begin anew.
            self.server.drop_slot(slot)
            return
        yield from self._process_message(member, parcel, now)
        self._pending_acks[slot] = parcel.number, member.last_row

    def _process_message(
        self, member: Member, message: BatchMessage, now: float
    ) -> Iterator[RecordOrBatch]:
        member.last_seen_at = self.membership.listening_clock.seconds
        for entry in member.accept_message(message, now, self.counters):
            yield from self._assign_attempt(member, entry)

    def _assign_attempt(self, member: Member, entry: RecordOrBatch) -> Iterator[RecordOrBatch]:
        """What was said, in its attempt of the run; a TICK is kept for the roll."""
        if isinstance(entry, Record):
            yield from self._process_record(member, entry)
            return
        attempt = self.attempt_map.run_attempt(member.attempt_key, entry.attempt)
        if attempt is None:
            for record in entry.records():
                yield from self._process_record(member, record)
            return
        member.add_ranks(attempt, entry.ranks)
        self.membership.last_record_at = self.membership.listening_clock.seconds
        yield entry if attempt == entry.attempt else replace(entry, attempt=attempt)

    def _process_record(self, member: Member, record: Record) -> Iterator[Record]:
        attempt = self._run_attempt(member, record)
        if attempt != record.attempt:
            record = replace(record, attempt=attempt)
        if record.event is Event.HEARTBEAT:
            if own := self.node_hardware.update(member.name, member.host, record.values):
                values = {name: told for name, told in record.values.items() if name not in own}
                record = replace(record, values=values)
            member.heartbeat = record
            return
        if member is self.membership.own_member and not self.gathered_ranks.accepts(
            attempt, record
        ):
            return
        if record.event is Event.START:
            expected = {"expected_ranks": record.values.get("world_size", 1.0)}
            record = replace(record, values={**record.values, **expected})
        member.add_rank(attempt, record.rank, has_ended=record.event is Event.STOP)
        self.membership.last_record_at = self.membership.listening_clock.seconds
        yield record

    def _run_attempt(self, member: Member, record: Record) -> int:
        """Its attempt of the run: a START says what is known of it, other words may go without."""
        known = self.attempt_map.run_attempt(member.attempt_key, record.attempt)
        # What rank 0 gathered is claimed by nobody: the ranks' own nodes may tell of it yet.
        by_rank_0 = known is not None and "via_collective" in record.attributes
        if record.event is Event.START and not by_rank_0:
            told = record.values.get("world_size", 0.0)
            world = int(told) if isfinite(told) else 0
            port = record.attributes.get("master_port", "")
            who = member.attempt_key, record.attempt, record.rank
            return self.attempt_map.assign(*who, world, port, started_at=record.time)
        if known is not None:
            return known
        if record.rank == WHOLE_RUN:
            return max(self.attempt_map.current, 0)
        who = member.attempt_key, record.attempt, record.rank
        return self.attempt_map.assign(*who, 0, started_at=record.time)

    def _merge_heartbeats(self, now: float) -> Iterator[Record]:
        """The one TICK of the run; and the end of those that nobody waits for any more."""
        attempt = self.attempt_map.current
        self._deputy_slot = self._choose_deputy_slot(attempt)
        self.server.run_finished = self.finished
        told = [
            self._node_heartbeat(member, attempt)
            for member in self.membership.present_members(attempt)
        ]
        known = [each for each in told if each is not None]
        if not known:
            return
        waiting = [*self.membership.unended_members(attempt)]
        if all(
            self.membership.silent_seconds(member) >= ABANDON_AFTER_SECONDS for member in waiting
        ):
            yield from self._synthesize_stops(waiting, now)
            waiting = []
        unheard = any(member.heartbeat is None for member in waiting)
        tick = merge_heartbeats(self.run, known, now, has_unheard_nodes=unheard)
        values, facts = self.node_hardware.pop_combined()
        facts["unreachable_ranks"] = ",".join(
            map(str, self.membership.away_ranks(waiting, attempt))
        )
        if tick.attributes["state"] in ENDED_STATES and self._is_run_active():
            # A node's TICK is newer than its records that are still under way.
            facts["state"] = "running"
        if self.is_shutting_down:
            facts["final"] = "yes"
            if tick.attributes.get("failure_origin") == "undecided":
                facts["failure_origin"] = ""
        yield replace(
            tick, values={**tick.values, **values}, attributes={**tick.attributes, **facts}
        )

    def _choose_deputy_slot(self, attempt: int) -> int:
        """The slot of the node that is to tell people if we fall silent; 0 for none."""
        fit = {
            min(member.ranks_by_attempt[attempt]): slot
            for slot, member in self.membership.by_slot.items()
            if attempt in member.ranks_by_attempt and not self.membership.is_lost(member, attempt)
        }
        return fit[min(fit)] if fit else 0

    def _has_missing_ranks(self) -> bool:
        attempt = self.attempt_map.attempts.get(self.attempt_map.current)
        world = 0 if attempt is None else attempt.world_size
        return self.membership.has_missing_ranks(self.attempt_map.current, world)

    def _is_run_active(self) -> bool:
        """Whether there is more to be heard of how the run goes, of others than lost nodes."""
        attempt = self.attempt_map.current
        waiting = self.membership.unended_members(attempt)
        return (
            not all(self.membership.is_lost(each, attempt) for each in waiting)
            or self._has_missing_ranks()
        )

    def _node_heartbeat(self, member: Member, attempt: int) -> NodeHeartbeat | None:
        lost = self.membership.is_lost(member, attempt)
        if lost:
            self.node_hardware.forget(member.name)
            # One that did not come back to a head that was restarted: all we know is that it is.
            blank = Record(self.run, WHOLE_RUN, 0, 0.0, Event.HEARTBEAT, attempt=attempt)
            member.heartbeat = member.heartbeat or replace(blank, attributes={"state": "running"})
        return member.node_heartbeat(self.membership.silent_seconds(member), is_lost=lost)

    def _synthesize_stops(self, members: Iterable[Member], now: float) -> Iterator[Record]:
        """A STOP for each rank of these nodes, who are long lost while all others have ended."""
        attempt = self.attempt_map.current
        for member in members:
            member.abandoned_attempt = attempt
            for rank in member.unended_ranks(attempt):
                facts = {"outcome": "died", "lost_node": member.host}
                end = Record(self.run, rank, 0, now, Event.STOP, attributes=facts, attempt=attempt)
                member.add_rank(attempt, rank, has_ended=True)
                yield end
