"""Strangers: what somebody who found a head's store leaves there, with its token or without."""

from __future__ import annotations

import json
import time
from contextlib import suppress

from hosts import PATIENCE
from support.rank_processes import until

from sentinel.cluster.authentication import PROTOCOL, Seal
from sentinel.cluster.endpoints import CARD, SLOTS, address, slot_keys
from sentinel.cluster.message_store import Board, BoardError
from sentinel.cluster.server import MOST_BYTES
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.transport.batch_codec import Writer
from sentinel.transport.rendezvous import Meeting, meeting

AN_HOUR = 3600.0
FAR_BEATS = 1 << 40
FLOOD = 500


def met(job, host) -> tuple[Board, Meeting]:
    """The store of that job's head, found from that host as its agent finds it."""
    told = {"MASTER_ADDR": job.hosts[0].address, "MASTER_PORT": str(job.port)}
    where = address(meeting(told))

    def found():
        for port in where.ports:
            with suppress(BoardError):
                board = Board.join(where.host, port)
                if board.has(CARD):
                    return board
        return None

    board = host.within(lambda: until(found, PATIENCE, "the head's store is there"))
    return board, meeting(told)


def throw(board: Board, slots: range) -> None:
    """All that nobody can mean, into every place that there is, and many that are not."""
    foreign = Seal.of("", "somebody else's").close("hello", b"{}")
    for message in (b"", b"garbage", bytes([PROTOCOL + 1]) + bytes(64), foreign):
        hello, _, _ = slot_keys(board.count(SLOTS))
        board.leave({hello: message})
    for slot in slots:
        _, box, ack = slot_keys(slot)
        board.leave({box: bytes(MOST_BYTES + 1024), ack: b"garbage"})
    board.count(SLOTS, FLOOD)


class Insider:
    """A node with the job's own secret, that nevertheless says what no node of ours would."""

    def __init__(self, board: Board, job: Meeting) -> None:
        self.board, self.seal = board, Seal.of("", job.job)
        told = json.loads(self.seal.open(CARD, board.read([CARD])[0]))
        self.birth = told["birth"]

    def enter(self) -> None:
        """Say hello, and wait for the answer."""
        self.writer = Writer()
        slot = self.board.count(SLOTS)
        hello, self.box, self.ack = slot_keys(slot)
        card = {"host": "elsewhere", "run": "strange", "spool": "its own"}
        self.board.leave({self.box: b"", self.ack: b""})
        self._put(hello, json.dumps(card).encode())
        until(lambda: self.board.read([self.ack])[0], PATIENCE, "it is welcomed")

    def parcel(self, *records: Record) -> bytes:
        """The next one of its correspondence."""
        return self.writer.write(records, 1, len(records), time.time())

    def leave(self, parcel: bytes) -> None:
        """Put it there, and wait until the head has taken it away, or has let go of us."""
        self._put(self.box, parcel)

        def taken() -> bool:
            return not (self.board.has(self.box) and self.board.read([self.box])[0])

        until(taken, PATIENCE, "it is taken")

    def _put(self, key: str, body: bytes) -> None:
        self.board.leave({key: self.seal.close(f"{key}/{self.birth}", body)})


def word(sequence: int, *, later: float = 0.0, beat: int = 1) -> Record:
    """Something that changes nothing, of the whole run."""
    when = time.time() + later
    return Record("", WHOLE_RUN, 1, when, Event.FACTS, beat=beat, sequence=sequence)
