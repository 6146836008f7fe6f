"""Strangers: what somebody who found a head's store leaves there, with its token or without."""

from __future__ import annotations

import json
import time
from contextlib import suppress

from hosts import PATIENCE
from support.rank_processes import until

from sentinel.cluster.authentication import PROTOCOL_VERSION, MessageAuthenticator
from sentinel.cluster.endpoints import HEAD_INFO_KEY, SLOT_COUNTER_KEY, head_endpoint, slot_keys
from sentinel.cluster.message_store import MessageStore, MessageStoreError
from sentinel.cluster.server import MAX_MESSAGE_BYTES
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.transport.batch_codec import BatchEncoder
from sentinel.transport.rendezvous import Rendezvous, detect_rendezvous

AN_HOUR = 3600.0
FAR_BEATS = 1 << 40
FLOOD = 500


def met(job, host) -> tuple[MessageStore, Rendezvous]:
    """The store of that job's head, found from that host as its agent finds it."""
    told = {"MASTER_ADDR": job.hosts[0].address, "MASTER_PORT": str(job.port)}
    where = head_endpoint(detect_rendezvous(told))

    def found():
        for port in where.ports:
            with suppress(MessageStoreError):
                board = MessageStore.connect(where.host, port)
                if board.has(HEAD_INFO_KEY):
                    return board
        return None

    board = host.within(lambda: until(found, PATIENCE, "the head's store is there"))
    return board, detect_rendezvous(told)


def throw(board: MessageStore, slots: range) -> None:
    """All that nobody can mean, into every place that there is, and many that are not."""
    foreign = MessageAuthenticator.for_job("", "somebody else's").sign("hello", b"{}")
    for message in (b"", b"garbage", bytes([PROTOCOL_VERSION + 1]) + bytes(64), foreign):
        hello, _, _ = slot_keys(board.increment(SLOT_COUNTER_KEY))
        board.write({hello: message})
    for slot in slots:
        _, box, ack = slot_keys(slot)
        board.write({box: bytes(MAX_MESSAGE_BYTES + 1024), ack: b"garbage"})
    board.increment(SLOT_COUNTER_KEY, FLOOD)


class Insider:
    """A node with the job's own secret, that nevertheless says what no node of ours would."""

    def __init__(self, board: MessageStore, job: Rendezvous) -> None:
        self.board, self.seal = board, MessageAuthenticator.for_job("", job.job_id)
        told = json.loads(self.seal.verify(HEAD_INFO_KEY, board.read([HEAD_INFO_KEY])[0]))
        self.birth = told["birth"]

    def enter(self) -> None:
        """Say hello, and wait for the answer."""
        self.writer = BatchEncoder()
        slot = self.board.increment(SLOT_COUNTER_KEY)
        hello, self.box, self.ack = slot_keys(slot)
        card = {"host": "elsewhere", "run": "strange", "spool": "its own"}
        self.board.write({self.box: b"", self.ack: b""})
        self._put(hello, json.dumps(card).encode())
        until(lambda: self.board.read([self.ack])[0], PATIENCE, "it is welcomed")

    def parcel(self, *records: Record) -> bytes:
        """The next one of its correspondence."""
        return self.writer.encode(records, 1, len(records), time.time())

    def leave(self, parcel: bytes) -> None:
        """Put it there, and wait until the head has taken it away, or has let go of us."""
        self._put(self.box, parcel)

        def taken() -> bool:
            return not (self.board.has(self.box) and self.board.read([self.box])[0])

        until(taken, PATIENCE, "it is taken")

    def _put(self, key: str, body: bytes) -> None:
        self.board.write({key: self.seal.sign(f"{key}/{self.birth}", body)})


def word(sequence: int, *, later: float = 0.0, beat: int = 1) -> Record:
    """Something that changes nothing, of the whole run."""
    when = time.time() + later
    return Record("", WHOLE_RUN, 1, when, Event.METADATA, step_index=beat, sequence=sequence)
