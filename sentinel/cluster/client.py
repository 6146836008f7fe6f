"""Link: a node's side of the correspondence with the head, in a thread of its own.

It looks for the head, says hello, leaves one parcel at a time in its box, and looks for the answer.
Whatever goes wrong, it lets go and begins anew. The agent's loop only hands over and takes up.
"""

from __future__ import annotations

import json
import logging
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from sentinel.cluster.authentication import RefusedError, Seal
from sentinel.cluster.endpoints import CARD, SLOTS, Address, address, slot_keys, spelled
from sentinel.cluster.message_store import Board, BoardError, cut
from sentinel.model.counters import Tally
from sentinel.transport.rendezvous import NOWHERE

log = logging.getLogger(__name__)

EXCHANGE_SECONDS = 0.2
IDLE_SECONDS = 1.0
"""How often we look whether the head is still there, while nothing is to be said or answered."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0
"""Seconds between two attempts to reach the head."""
WELCOME_SECONDS = 10.0
ANSWER_SECONDS = 8.0
"""How long a parcel may lie unanswered: somebody may have taken it away, or its answer."""
STUCK_SECONDS = 8.0
"""How long one call may last before its connection is cut."""
ANSWER = struct.Struct("<IQB")
"""Number of the parcel that is answered, the last row that is safe, whether we are the deputy."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The head's word: all rows up to `row` are safe with it, and parcel `number` was read.

    `session` counts the correspondences; a new one begins with number 0 and a new `Writer`.
    """

    session: int
    number: int
    row: int
    deputy: bool


class Link:
    """Reaches the head at `where` says, with the `card` of this node. Start it once."""

    def __init__(
        self,
        where: Callable[[], Address],
        seal: Seal,
        card: Mapping[str, str],
        tally: Tally,
    ) -> None:
        self._where, self._seal, self._card, self._tally = where, seal, dict(card), tally
        self.answer: Answer | None = None
        self.linked = False
        self.trouble = "it has not been looked for yet"
        self.head = ""
        self._parcel: tuple[int, bytes] | None = None
        self._left_at = inf
        """When the parcel was left that is not answered yet."""
        self._session = 0
        self._moved = self._looked = time.monotonic()
        self._port = 0
        self._knocked = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)

    def start(self) -> None:
        """Begin to look for the head."""
        self._thread.start()

    def let_go(self) -> None:
        """Leave when the call under way is over."""
        self._stop.set()

    def stop(self, timeout: float = 5.0) -> None:
        """Leave now; whatever blocks is cut."""
        self.let_go()
        self._thread.join(timeout=0.5)
        until = time.monotonic() + timeout
        while self._thread.is_alive() and time.monotonic() < until:
            # Again and again: whoever is cut while it connects tries once more.
            cut(self._port)
            self._thread.join(timeout=0.1)

    def send(self, session: int, parcel: bytes) -> None:
        """Leave that parcel with the head, in that correspondence; the last must be answered."""
        self._parcel = session, parcel

    def look(self) -> None:
        """Cut a call that takes too long. To be called often."""
        if time.monotonic() - self._moved > STUCK_SECONDS:
            self._move()
            cut(self._port)

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._stop.is_set():
            before = self._session
            try:
                self._correspond()
            except RefusedError as refusal:
                self._tally.add("sentinel_link_refused_total", refusal.reason)
                self.trouble = str(refusal)
            except BoardError as error:
                self.trouble = str(error)
            except Exception as error:
                log.exception("The link to the head failed")
                self.trouble = f"{type(error).__name__}: {error}"
            self.linked = False
            self._move()
            pause = FIRST_PAUSE if self._session > before else min(2 * pause, LONGEST_PAUSE)
            self._stop.wait(pause)

    def _correspond(self) -> None:
        """One correspondence, until it breaks."""
        seal = self._seal
        board, birth = self._found(seal)
        try:
            slot = self._hello(board, seal, birth)
            self._wait_for_welcome(board, seal, birth, slot)
            self.linked, self.trouble = True, ""
            while not self._stop.is_set():
                self._exchange(board, seal, birth, slot)
                self._stop.wait(EXCHANGE_SECONDS)
        finally:
            board.close()

    def _found(self, seal: Seal) -> tuple[Board, str]:
        """The head's board, and the name of this life of it. Raises BoardError, RefusedError."""
        return self._found_at(self._where(), seal)

    def _found_at(self, where: Address, seal: Seal, *, sent: bool = False) -> tuple[Board, str]:
        refused = None
        if not where.host:
            raise BoardError("Nobody told where rank 0 is: set [cluster] head.")
        trouble = BoardError(f"The stores at {where.host} are not the head's.")
        for port in where.ports:
            try:
                board = self._joined(where.host, port)
                self._move()
                if not board.has(CARD):
                    continue
                (card,) = board.read([CARD])
                told = json.loads(seal.open(CARD, card))
                birth, at = str(told["birth"]), str(told.get("at", ""))
                if told.get("over") or spelled(where.host, port) == self._card.get("elder"):
                    # Its agent lingers, and the next run of that name meets at the next port; or
                    # it is ourselves.
                    continue
            except BoardError as error:
                trouble = error
            except RefusedError as refusal:
                # Of another job, maybe: ours may be at the next port.
                refused = refusal
                self._knock(board, seal)
            except (ValueError, LookupError, TypeError):
                refused = RefusedError("damaged", f"The card at {where.host}:{port} is damaged.")
            else:
                if at and not sent:
                    return self._found_at(address(NOWHERE, at), seal, sent=True)
                self.head = spelled(where.host, port)
                return board, birth
        raise refused or trouble

    def _joined(self, host: str, port: int) -> Board:
        self._port = port
        self._move()
        return Board.join(host, port)

    def _hello(self, board: Board, seal: Seal, birth: str) -> int:
        """Say who we are, in a place of our own, whose number is returned."""
        self._move()
        slot = board.count(SLOTS)
        hello, box, ack = slot_keys(slot)
        card = json.dumps({**self._card, "clock": repr(time.time())}).encode()
        board.leave({box: b"", ack: b"", hello: seal.close(f"{hello}/{birth}", card)})
        return slot

    def _knock(self, board: Board, seal: Seal) -> None:
        """Have a head that we cannot understand count us among those it refused."""
        if not self._knocked:
            self._knocked = True
            self._hello(board, seal, "")

    def _wait_for_welcome(self, board: Board, seal: Seal, birth: str, slot: int) -> None:
        self._parcel, self._left_at = None, inf
        until = time.monotonic() + WELCOME_SECONDS
        while not self._answered(board, seal, birth, slot):
            if time.monotonic() > until or self._stop.wait(EXCHANGE_SECONDS):
                raise BoardError("The head does not answer, though its store does.")

    def _answered(self, board: Board, seal: Seal, birth: str, slot: int) -> bool:
        """Take up the head's newest word; whether there is one in this correspondence."""
        self._looked = time.monotonic()
        self._move()
        _, box, ack = slot_keys(slot)
        message = board.peek(ack)
        if message is None:
            board.remove([box])
            raise BoardError("The head has let go of this correspondence.")
        if not message:
            return False
        number, row, deputy = ANSWER.unpack(seal.open(f"{ack}/{birth}", message))
        if not number and not self.linked:
            self._session += 1
        last = self.answer
        # An old one may have been put back by somebody.
        if last is None or (self._session, number) > (last.session, last.number):
            self.answer, self._left_at = Answer(self._session, number, row, bool(deputy)), inf
        return True

    def _exchange(self, board: Board, seal: Seal, birth: str, slot: int) -> None:
        parcel, self._parcel = self._parcel, None
        # Where nothing is awaited, that the head is there is all there is to see.
        if self._left_at < inf or time.monotonic() - self._looked >= IDLE_SECONDS:
            self._answered(board, seal, birth, slot)
        if parcel is not None and parcel[0] == self._session:
            _, box, _ = slot_keys(slot)
            board.leave({box: seal.close(f"{box}/{birth}", parcel[1])})
            self._left_at = time.monotonic()
        elif time.monotonic() - self._left_at > ANSWER_SECONDS:
            raise BoardError("The head does not answer, though its store does.")

    def _move(self) -> None:
        self._moved = time.monotonic()
