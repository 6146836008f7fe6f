"""A head with a clock of its own, and nodes that say to it what a test makes them say."""

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
class FakeHub:
    """What a head sees of its hub."""

    at: str = ""
    over: bool = False
    port: int = 1
    trouble: str = ""
    waiting: deque[Hello] = field(default_factory=deque)
    parcels: deque[tuple[int, bytes]] = field(default_factory=deque)
    answers: list[tuple[int, int, int, bool]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)

    def hellos(self):
        found, self.waiting = [*self.waiting], deque()
        return found

    def arrived(self):
        found, self.parcels = [*self.parcels], deque()
        return found

    def answer(self, slot, number, row, *, deputy=False):
        self.answers.append((slot, number, row, deputy))

    def drop(self, slot):
        self.dropped.append(slot)


@dataclass
class Node:
    """A node of two ranks, the head's own node being that of ranks 0 and 1."""

    house: House
    host: str
    ranks: tuple[int, ...]
    spool: str = "spool"
    run: str = "mine"
    slot: int = 0
    row: int = 0
    off: float = 0.0
    began: float = 0.0
    """When its ranks began, which they say however often it is read."""

    def hello(self, spool=""):
        self.house.slots += 1
        self.slot, self.writer, self.spool = self.house.slots, BatchEncoder(), spool or self.spool
        card = {"host": self.host, "run": self.run, "spool": self.spool}
        self.house.hub.waiting.append(Hello(self.slot, card))

    def parcel(self, *records, row=None):
        first = (self.row if row is None else row) + 1
        last = first if records else first - 1
        self.row = max(self.row, last)
        data = self.writer.encode(records, first, last, self.house.now + self.off)
        self.house.hub.parcels.append((self.slot, data))
        return data

    def says(self, event=Event.STEP, step=1, attempt=0, **facts):
        return [self.word(rank, event, step, attempt, **facts) for rank in self.ranks]

    def word(self, rank, event=Event.STEP, step=1, attempt=0, **facts):
        values = {"world_size": float(self.house.world)} if event is Event.START else {"loss": 1.0}
        sequence = {Event.START: 1, Event.STOP: 1000}.get(event, step + 1)
        time = self.house.now + self.off
        if event is Event.START:
            time = self.began = self.began or time
        return Record(
            self.run,
            rank,
            step,
            time,
            event,
            values,
            facts,
            attempt=attempt,
            step_index=step,
            sequence=sequence,
        )

    def tick(self, state="running", attempt=0):
        values = {"ranks_running": float(len(self.ranks)), "idle_seconds": 0.0}
        facts = {"state": state}
        now = self.house.now + self.off
        return Record(
            self.run,
            WHOLE_RUN,
            1,
            now,
            Event.HEARTBEAT,
            values,
            facts,
            attempt=attempt,
            step_index=1,
        )


class House:
    """A head with a clock of its own, whose turns are an agent's."""

    def __init__(self, path, world=4):
        self.path, self.world, self.now, self.slots = path, world, 1_000_000.0, 0
        self.tally = Counters()
        self.own = Node(self, "a", (0, 1), run="run")
        self.begin()

    def begin(self, path=None):
        """A new agent, with the database that there is."""
        self.connection = connect(path or self.path)
        self.hub = FakeHub()
        self.head = Head("run", "a", self.connection, self.hub, self.tally, lambda: self.now)

    def turn(self, *local, seconds=0.5):
        self.now += seconds
        records = [*iter_records(self.head.merge(local))]
        if records or self.head.has_unsaved_changes:
            with transaction(self.connection):
                self.head.persist()
        self.head.after_commit()
        return records

    def wait(self, seconds, *, others=(), local=True):
        """Turns with ticks of our node, and of the others that are there."""
        found = []
        for _ in range(int(seconds * 2)):
            for node in others:
                node.decode(node.tick())
            found += self.turn(*[self.own.tick()] * local)
        return found

    def node(self, host="b", ranks=(2, 3), **more):
        node = Node(self, host, ranks, **more)
        node.hello()
        self.turn()
        return node

    def running(self):
        """All nodes have begun; the other one."""
        self.turn(*self.own.says(Event.START))
        node = self.node()
        node.decode(*node.says(Event.START), node.tick())
        self.turn(self.own.tick())
        return node


def told(records, event=Event.STEP):
    return [(r.rank, r.attempt, r.step) for r in records if r.event is event]


def last_tick(records):
    return [record for record in records if record.event is Event.HEARTBEAT][-1]
