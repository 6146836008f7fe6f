"""A post with a clock of its own, and a link to a head that answers when it is told to."""

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
class FakeLink:
    """What a post sees of its link; and a head that reads and answers when it is told to."""

    answer: MessageAck | None = None
    linked: bool = False
    head: str = ""
    trouble: str = ""
    sent: list[tuple[int, bytes]] = field(default_factory=list)
    reader: BatchDecoder = field(default_factory=lambda: BatchDecoder("run"))

    def look(self):
        pass

    def send(self, session, parcel):
        self.sent.append((session, parcel))

    def welcome(self, row=0):
        session = self.answer.session + 1 if self.answer else 1
        self.answer, self.linked, self.head = MessageAck(session, 0, row, False), True, "a:1"
        self.sent, self.reader = [], BatchDecoder("run")

    def read(self):
        """The one parcel that was sent since the last answer."""
        ((session, data),) = self.sent
        assert session == self.answer.session
        return self.reader.decode(data)

    def confirm(self, deputy=False):
        parcel, self.sent = self.read(), []
        row = max(parcel.last_row, self.answer.last_row)
        self.answer = replace(
            self.answer, message_number=parcel.message_number, last_row=row, is_deputy=deputy
        )
        return parcel


class House:
    """A post with a clock of its own, whose turns are an agent's."""

    def __init__(self, path, limit=1 << 20):
        self.path, self.limit, self.now, self.step = path, limit, 1000.0, 0
        self.tally = Counters()
        self.begin()

    def begin(self, path=None):
        """A new agent, with the database that there is."""
        self.connection = connect(path or self.path)
        self.spool = Spool(self.connection, self.tally, self.limit)
        self.link = FakeLink()
        self.post = Follower("run", self.spool, self.link, lambda: self.now)

    def turn(self, *records, seconds=0.5):
        self.now += seconds
        own = self.post.forward(records)
        if own or self.post.has_unsaved_changes:
            with transaction(self.connection):
                self.post.persist()
        self.post.after_commit()
        return own

    def wait(self, seconds, *records):
        own = []
        for _ in range(int(seconds * 2)):
            own += self.turn(*records)
        return own

    def said(self, count=1):
        """The next words of a rank."""
        self.step += count
        return [word(number) for number in range(self.step - count + 1, self.step + 1)]


def word(number, event=Event.STEP):
    return Record("mine", 2, number, 1000.0, event, step_index=number, sequence=number)


def tick(**values):
    return Record(
        "mine",
        WHOLE_RUN,
        1,
        1000.0,
        Event.HEARTBEAT,
        values=values,
        attributes={"state": "running"},
    )


def steps(parcel):
    return [
        record.step
        for record in iter_records(parcel.entries)
        if record.event is not Event.HEARTBEAT
    ]
