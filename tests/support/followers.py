"""A follower with a fake clock and a fake client, whose head acknowledges on request."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sentinel.cluster.client import MessageAck
from sentinel.cluster.follower import Follower
from sentinel.cluster.spool import Spool
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import iter_records
from sentinel.store.database import connect, transaction
from sentinel.transport.batch_codec import BatchDecoder


@dataclass
class FakeClient:
    """The interface of ClusterClient that a follower uses, and the head behind it."""

    last_ack: MessageAck | None = None
    is_connected: bool = False
    is_head_flooded: bool = False
    head_address: str = ""
    error: str = ""
    is_reachable: bool = False
    sent: list[tuple[int, bytes]] = field(default_factory=list)
    decoder: BatchDecoder = field(default_factory=lambda: BatchDecoder("run"))

    def check_timeout(self):
        pass

    def is_head_reachable(self):
        return self.is_connected or self.is_reachable

    def send(self, session, message):
        self.sent.append((session, message))

    def accept(self, last_row=0):
        """Start a session, with a head that has stored rows up to `last_row`."""
        session = self.last_ack.session + 1 if self.last_ack else 1
        self.last_ack = MessageAck(session, 0, last_row, is_deputy=False)
        self.is_connected, self.head_address = True, "a:1"
        self.sent, self.decoder = [], BatchDecoder("run")

    def receive(self):
        """The one message that was sent since the last acknowledgement."""
        ((session, data),) = self.sent
        assert session == self.last_ack.session
        return self.decoder.decode(data)

    def acknowledge(self, *, is_deputy=False):
        """Receive and acknowledge the message."""
        message, self.sent = self.receive(), []
        self.last_ack = replace(
            self.last_ack,
            message_number=message.number,
            last_row=max(message.last_row, self.last_ack.last_row),
            is_deputy=is_deputy,
        )
        return message


class FollowerHarness:
    """A follower with a fake clock, driven like the main loop of an agent."""

    def __init__(self, path, max_spool_bytes=1 << 20):
        self.path, self.max_spool_bytes, self.now, self.step = path, max_spool_bytes, 1000.0, 0
        self.counters = Counters()
        self.start_agent()

    def start_agent(self, path=None):
        """Start an agent on the existing database, or on another."""
        self.connection = connect(path or self.path)
        self.spool = Spool(self.connection, self.counters, self.max_spool_bytes)
        self.client = FakeClient()
        self.follower = Follower("run", self.spool, self.client, lambda: self.now)

    def forward(self, *records, seconds=0.5):
        """One iteration of the main loop; returns what the follower evaluates itself."""
        self.now += seconds
        own = self.follower.forward(records)
        if own or self.follower.has_unsaved_changes:
            with transaction(self.connection):
                self.follower.persist()
        self.follower.after_commit()
        return own

    def advance(self, seconds, *records):
        """Two iterations a second, with these records in each."""
        own = []
        for _ in range(int(seconds * 2)):
            own += self.forward(*records)
        return own

    def next_records(self, count=1):
        """The next records of a rank."""
        self.step += count
        return [record(number) for number in range(self.step - count + 1, self.step + 1)]


def record(number, event=Event.STEP):
    return Record("mine", 2, number, 1000.0, event, step_index=number, sequence=number)


def heartbeat(**values):
    return Record(
        "mine",
        WHOLE_RUN,
        1,
        1000.0,
        Event.HEARTBEAT,
        values=values,
        attributes={"state": "running"},
    )


def steps(message):
    """The steps of all records of a message but heartbeats."""
    return [
        each.step for each in iter_records(message.entries) if each.event is not Event.HEARTBEAT
    ]
