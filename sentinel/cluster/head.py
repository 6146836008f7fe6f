"""The head: combines the records of all nodes into those of one run, which its agent evaluates.

Records of other nodes arrive in the order of each rank. Their attempts are mapped to attempts of
the run, and their times to the local clock. The position in each node's spool is stored in the
transaction that evaluates the records, and acknowledged after it: no record is lost, or evaluated
twice.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Any

from sentinel.cluster.attempt_map import Attempt, AttemptMap
from sentinel.cluster.authentication import count_refused
from sentinel.cluster.member import Member
from sentinel.cluster.membership import OWN_NODE_NAME, Membership
from sentinel.cluster.node_hardware import NodeHardware
from sentinel.cluster.run_heartbeat import RunHeartbeat
from sentinel.cluster.server import ClusterServer, Hello
from sentinel.cluster.validation import is_valid_node_info, validate_message
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import RecordOrBatch, coalesce, iter_records
from sentinel.transport.batch_codec import BatchMessageError

MAX_TURN_BYTES = 1 << 20
"""Approximate size of the messages that one call of `merge` processes."""
NODES_PER_INTERVAL, HEARTBEAT_INTERVAL_SECONDS, MAX_HEARTBEAT_INTERVAL_SECONDS = 1000, 0.5, 1.0
"""Interval of the heartbeat of the run for each so many nodes, up to that of the nodes. With fewer
nodes it is made with each of this node."""
PROMPT_SECONDS = 4.0
"""Age of a loss up to which it is sent without another look."""
NODE_RETURN_SECONDS = 15.0
"""Time for nodes to connect again after the link of the head was cut."""
YIELD_WINDOW_SECONDS = 120.0
"""How long a new head yields to a head that has evaluated the run before."""


@dataclass
class Head:
    """Combines the nodes of `run`; the local node is `host`.

    `clock` returns seconds since the epoch.
    """

    run: str
    host: str
    connection: sqlite3.Connection
    server: ClusterServer
    counters: Counters
    clock: Callable[[], float] = time.time
    node_hardware: NodeHardware = field(default_factory=NodeHardware)
    established_head: str = ""
    """Address of another head of this run that has evaluated it for longer."""
    is_shutting_down: bool = False
    """Whether this is the last call of `merge`."""
    _pending_acks: dict[int, tuple[int, int]] = field(default_factory=dict)
    _deputy_slot: int = 0
    _delayed_loss_time: float = -1.0
    """When the loss was found that could not be sent at once."""
    _receiver_reached_at: float = 0.0
    _heartbeat_at: float = -inf
    _store_count: int = 1

    def __post_init__(self) -> None:
        self.membership = Membership(self.host, self.connection, self.clock)
        query = "select value from cluster where key = 'attempt_map'"
        row = self.connection.execute(query).fetchone()
        self._stored_attempt_map = row[0] if row else ""
        self.attempt_map = AttemptMap.deserialize(self._stored_attempt_map)
        self.run_heartbeat = RunHeartbeat(
            self.run, self.membership, self.node_hardware, self.attempt_map
        )
        # All records so far, while an established head may still take over.
        self._early_records: list[Record] | None = None if self._stored_attempt_map else []

    def start_at_attempt(self, attempt: int) -> None:
        """Begin with this attempt of the local node; its earlier ones were those of the run."""
        if not self._stored_attempt_map and attempt > 0:
            self.attempt_map.attempts[attempt - 1] = Attempt()
            self.attempt_map.node_attempts[OWN_NODE_NAME] = {attempt - 1: attempt - 1}
            self._early_records = None

    def merge(self, local_entries: Iterable[RecordOrBatch]) -> list[RecordOrBatch]:
        """The records of the run: those of the local node, and all that have arrived."""
        now = self.clock()
        if self.server.store_count != self._store_count:
            self._store_count = self.server.store_count
            self.membership.end_sessions()
        if self.membership.listening_clock.advance(is_listening=not self.server.flood):
            self.membership.note_suspension()
        for hello in self.server.drain_hellos():
            self._register_node(hello)
        local_entries = [*local_entries]
        self._update_early_records(local_entries)
        entries: list[RecordOrBatch] = []
        has_heartbeat = False
        for entry in local_entries:
            if isinstance(entry, Record) and entry.event is Event.HEARTBEAT:
                has_heartbeat = True
            entries += self._process_entry(self.membership.own_member, entry)
        for slot, message in self.server.drain_messages(MAX_TURN_BYTES):
            entries += self._process_message(slot, message, now)
        if has_heartbeat and self._is_heartbeat_due(now):
            self._heartbeat_at = now
            self._deputy_slot = self.run_heartbeat.deputy_slot()
            self.server.run_finished = self.finished
            waiting = self.server.waiting_slots()
            entries += self.run_heartbeat.records(
                now, waiting, flood=self.server.flood, is_last=self.is_shutting_down
            )
        return coalesce(entries)

    def _is_heartbeat_due(self, now: float) -> bool:
        """Whether the nodes can have sent another heartbeat since the last one of the run."""
        count = len(self.membership.by_slot) // NODES_PER_INTERVAL
        interval = min(count * HEARTBEAT_INTERVAL_SECONDS, MAX_HEARTBEAT_INTERVAL_SECONDS)
        return self.is_shutting_down or not 0 <= now - self._heartbeat_at < interval

    def persist(self) -> None:
        """Store the position of each node, within the caller's transaction."""
        self.membership.persist()
        attempt_map = self.attempt_map.serialize()
        if attempt_map != self._stored_attempt_map:
            self._stored_attempt_map = attempt_map
            self.connection.execute(
                "insert or replace into cluster(key, value) values('attempt_map', ?)",
                (attempt_map,),
            )

    def after_commit(self) -> None:
        """Acknowledge what is stored. The transaction is committed."""
        if self._pending_acks and self._deputy_slot not in self.membership.by_slot:
            # With the first acknowledgement: the head may be lost before its next heartbeat.
            self._deputy_slot = self.run_heartbeat.deputy_slot()
        while self._pending_acks:
            slot, (number, row) = self._pending_acks.popitem()
            self.server.acknowledge(slot, number, row, is_deputy=slot == self._deputy_slot)

    @property
    def has_unread(self) -> bool:
        """Whether messages have arrived that are not processed."""
        return bool(self.server.waiting_slots())

    @property
    def has_unsaved_changes(self) -> bool:
        """Whether there is anything to store."""
        return self.membership.has_unsaved_changes

    @property
    def finished(self) -> bool:
        """Whether all ranks have ended and no node is expected to send more."""
        return self.run_heartbeat.is_run_finished

    def node_status(self) -> list[dict[str, Any]]:
        """Each node as JSON; see `Membership.node_status`."""
        return self.membership.node_status(self.attempt_map.current)

    def is_reached(self, hosts: Collection[str]) -> bool:
        """Whether each of these hosts sent a message lately. In any thread."""
        reachable = self.membership.reachable_hosts(self.attempt_map.current)
        return bool(hosts) and reachable.issuperset(hosts)

    @property
    def has_lost_nodes(self) -> bool:
        """Whether a node of the newest attempt is lost."""
        attempt = self.attempt_map.current
        present = self.membership.present_members(attempt)
        return any(self.membership.is_lost(member, attempt) for member in present)

    def confirms_loss(self, hosts: Collection[str], opened_time: float) -> bool:
        """Whether these hosts are still lost, asked when that is about to be sent. In any thread.

        If it could not be sent at once, the link of this node may have been cut: now that the
        receiver is reached, the nodes have some time to connect again.
        """
        if self.is_reached(hosts):
            return False
        now = self.clock()
        if opened_time != self._delayed_loss_time:
            if 0 <= now - opened_time < PROMPT_SECONDS:
                return True
            self._delayed_loss_time, self._receiver_reached_at = opened_time, now
        return not 0 <= now - self._receiver_reached_at < NODE_RETURN_SECONDS

    def unreached_ranks(self, world_size: int) -> list[int]:
        """Those of the `world_size` ranks that no command of this agent reaches."""
        return self.membership.unreached_ranks(self.attempt_map.current, world_size)

    def has_seen_rank(self, rank: int) -> bool:
        """Whether a record of that rank has arrived in the newest attempt."""
        attempt = self.attempt_map.current
        present = self.membership.present_members(attempt)
        return any(rank in member.ranks_by_attempt.get(attempt, ()) for member in present)

    @property
    def early_records(self) -> list[Record] | None:
        """All records of the local node, while this head is new and no other node has joined."""
        return self._early_records

    def _update_early_records(self, local_entries: Iterable[RecordOrBatch]) -> None:
        if (
            self.membership.by_slot
            or self.membership.listening_clock.seconds >= YIELD_WINDOW_SECONDS
        ):
            self._early_records = None
        if self._early_records is not None:
            self._early_records += (
                record
                for record in iter_records(local_entries)
                if record.event is not Event.HEARTBEAT
            )

    def _register_node(self, hello: Hello) -> None:
        if not is_valid_node_info(hello.node_info):
            count_refused(self.counters, "damaged")
            self.server.drop_slot(hello.slot)
            return
        if "established_head" in hello.node_info:
            self.established_head = hello.node_info["established_head"]
            self.server.drop_slot(hello.slot)
            return
        member, previous_slot = self.membership.join(hello.slot, hello.node_info, self.run)
        if previous_slot:
            self.server.drop_slot(previous_slot)
            self._pending_acks.pop(previous_slot, None)
        self.node_hardware.expected_nodes = max(
            self.node_hardware.expected_nodes, 1 + len(self.membership.by_slot)
        )
        self._pending_acks[hello.slot] = 0, member.last_row

    def _process_message(
        self, slot: int, message_bytes: bytes, now: float
    ) -> Iterator[RecordOrBatch]:
        member = self.membership.by_slot.get(slot)
        if member is None:
            return
        try:
            message = member.batch_decoder.decode(message_bytes)
            validate_message(message)
        except BatchMessageError as refusal:
            count_refused(self.counters, refusal.reason)
            # The next message may depend on this one: the node must start a new session.
            self.server.drop_slot(slot)
            return
        member.last_seen_at = self.membership.listening_clock.seconds
        for entry in member.accept_message(message, now, self.counters):
            yield from self._process_entry(member, entry)
        self._pending_acks[slot] = message.number, member.last_row

    def _process_entry(self, member: Member, entry: RecordOrBatch) -> Iterator[RecordOrBatch]:
        """The entry with its attempt of the run; a heartbeat is stored for the run heartbeat."""
        if isinstance(entry, Record):
            yield from self._process_record(member, entry)
            return
        attempt = self.attempt_map.run_attempt(member.attempt_key, entry.attempt)
        if attempt is None:
            for record in entry.records():
                yield from self._process_record(member, record)
            return
        member.add_ranks(attempt, entry.ranks)
        self.membership.note_record()
        yield entry if attempt == entry.attempt else replace(entry, attempt=attempt)

    def _process_record(self, member: Member, record: Record) -> Iterator[Record]:
        attempt = self._run_attempt(member, record)
        if attempt != record.attempt:
            record = replace(record, attempt=attempt)
        if record.event is Event.HEARTBEAT:
            if own := self.node_hardware.update(member.name, member.host, record.values):
                values = {name: value for name, value in record.values.items() if name not in own}
                record = replace(record, values=values)
            member.heartbeat = record
            return
        if member is self.membership.own_member and not self.membership.accepts_own_record(
            attempt, record
        ):
            return
        if record.event is Event.START:
            expected = {"expected_ranks": record.values.get("world_size", 1.0)}
            record = replace(record, values={**record.values, **expected})
        member.add_rank(attempt, record.rank, has_ended=record.event is Event.STOP)
        self.membership.note_record()
        yield record

    def _run_attempt(self, member: Member, record: Record) -> int:
        """The record's attempt of the run; a START carries what identifies it."""
        known = self.attempt_map.run_attempt(member.attempt_key, record.attempt)
        # A START that rank 0 gathered claims no rank: the rank's own node may still send it.
        is_claimed_elsewhere = known is not None and "via_collective" in record.attributes
        sender = member.attempt_key, record.attempt, record.rank
        if record.event is Event.START and not is_claimed_elsewhere:
            size = record.values.get("world_size", 0.0)
            world_size = int(size) if isfinite(size) else 0
            port = record.attributes.get("master_port", "")
            return self.attempt_map.assign(*sender, world_size, port, started_at=record.time)
        if known is not None:
            return known
        if record.rank == WHOLE_RUN:
            return max(self.attempt_map.current, 0)
        return self.attempt_map.assign(*sender, 0, started_at=record.time)
