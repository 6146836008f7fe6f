"""A head with a fake clock and server, and nodes whose messages a test composes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sentinel.cluster.head import Head
from sentinel.cluster.server import Hello
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import iter_records
from sentinel.store.database import connect, transaction
from sentinel.transport.batch_codec import BatchEncoder


@dataclass
class FakeServer:
    """The interface of ClusterServer that a head uses."""

    redirect_to: str = ""
    run_finished: bool = False
    flood: str = ""
    store_count: int = 1
    port: int = 1
    error: str = ""
    hellos: deque[Hello] = field(default_factory=deque)
    messages: deque[tuple[int, bytes]] = field(default_factory=deque)
    acks: list[tuple[int, int, int, bool]] = field(default_factory=list)
    dropped_slots: list[int] = field(default_factory=list)

    def drain_hellos(self):
        drained, self.hellos = [*self.hellos], deque()
        return drained

    def drain_messages(self, max_bytes):
        drained, size = [], 0
        while self.messages and size < max_bytes:
            drained.append(self.messages.popleft())
            size += len(drained[-1][1])
        return drained

    def waiting_slots(self):
        return {slot for slot, _ in self.messages}

    def acknowledge(self, slot, message_number, last_row, *, is_deputy=False):
        self.acks.append((slot, message_number, last_row, is_deputy))

    def drop_slot(self, slot):
        self.dropped_slots.append(slot)


@dataclass
class Node:
    """A node with `ranks`; that of the head has ranks 0 and 1."""

    harness: HeadHarness
    host: str
    ranks: tuple[int, ...]
    spool_id: str = "spool"
    run: str = "mine"
    slot: int = 0
    last_row: int = 0
    clock_offset: float = 0.0
    started_at: float = 0.0
    """When its ranks started; the same in each START, however often it is sent."""

    def send_hello(self, spool_id=""):
        self.harness.slot_count += 1
        self.slot, self.encoder = self.harness.slot_count, BatchEncoder()
        self.spool_id = spool_id or self.spool_id
        node_info = {"host": self.host, "run": self.run, "spool_id": self.spool_id}
        self.harness.server.hellos.append(Hello(self.slot, node_info))

    def send(self, *records, after_row=None):
        """Send a message with these records as one row, after `after_row` or its last one."""
        first = (self.last_row if after_row is None else after_row) + 1
        last = first if records else first - 1
        self.last_row = max(self.last_row, last)
        message = self.encoder.encode(records, first, last, self.harness.now + self.clock_offset)
        self.harness.server.messages.append((self.slot, message))
        return message

    def records(self, event=Event.STEP, step=1, attempt=0, **attributes):
        """One record of each rank."""
        return [self.record(rank, event, step, attempt, **attributes) for rank in self.ranks]

    def record(self, rank, event=Event.STEP, step=1, attempt=0, **attributes):
        is_start = event is Event.START
        values = {"world_size": float(self.harness.world_size)} if is_start else {"loss": 1.0}
        sequence = {Event.START: 1, Event.STOP: 1000}.get(event, step + 1)
        time = self.harness.now + self.clock_offset
        if is_start:
            time = self.started_at = self.started_at or time
        return Record(
            self.run,
            rank,
            step,
            time,
            event,
            values,
            attributes,
            attempt=attempt,
            step_index=step,
            sequence=sequence,
        )

    def heartbeat(self, state="running", attempt=0):
        return Record(
            self.run,
            WHOLE_RUN,
            1,
            self.harness.now + self.clock_offset,
            Event.HEARTBEAT,
            {"ranks_running": float(len(self.ranks)), "idle_seconds": 0.0},
            {"state": state},
            attempt=attempt,
            step_index=1,
        )


class HeadHarness:
    """A head with a fake clock, driven like the main loop of an agent."""

    def __init__(self, path, world_size=4):
        self.path, self.world_size, self.now, self.slot_count = path, world_size, 1_000_000.0, 0
        self.counters = Counters()
        self.own_node = Node(self, "a", (0, 1), run="run")
        self.start_agent()

    def start_agent(self, path=None):
        """Start an agent on the existing database, or on another."""
        self.connection = connect(path or self.path)
        self.server = FakeServer()
        self.head = Head("run", "a", self.connection, self.server, self.counters, lambda: self.now)

    def merge(self, *local_records, seconds=0.5):
        """One iteration of the main loop; returns the records of the run."""
        self.now += seconds
        records = [*iter_records(self.head.merge(local_records))]
        if records or self.head.has_unsaved_changes:
            with transaction(self.connection):
                self.head.persist()
        self.head.after_commit()
        return records

    def advance(self, seconds, *, others=()):
        """Two iterations a second, with heartbeats of the own node and of `others`."""
        records = []
        for _ in range(int(seconds * 2)):
            for node in others:
                node.send(node.heartbeat())
            records += self.merge(self.own_node.heartbeat())
        return records

    def add_node(self, host="b", ranks=(2, 3), **fields):
        """A node that has joined."""
        node = Node(self, host, ranks, **fields)
        node.send_hello()
        self.merge()
        return node

    def start_nodes(self):
        """Start the ranks of the own node and of another one, which is returned."""
        self.merge(*self.own_node.records(Event.START))
        node = self.add_node()
        node.send(*node.records(Event.START), node.heartbeat())
        self.merge(self.own_node.heartbeat())
        return node


def summarize(records, event=Event.STEP):
    """Rank, attempt and step of each record with that event."""
    return [(r.rank, r.attempt, r.step) for r in records if r.event is event]


def last_heartbeat(records):
    return [record for record in records if record.event is Event.HEARTBEAT][-1]
