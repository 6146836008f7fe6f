"""Hub: the head's side of all correspondences, in a thread of its own.

It hosts the store, welcomes nodes, empties their boxes and leaves them their answers. The agent's
loop takes up what arrived and says what is to be answered; a box stays full until it is.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from secrets import token_hex
from typing import TypeVar

from sentinel.cluster.authentication import OVERHEAD, RefusedError, Seal
from sentinel.cluster.client import ANSWER
from sentinel.cluster.endpoints import CARD, SLOTS, slot_keys
from sentinel.cluster.message_store import Board, BoardError, listener
from sentinel.model.counters import Tally

Item = TypeVar("Item")

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
PAUSE_SECONDS = 5.0
"""Until the store is tried again that could not be hosted, or failed."""
FAREWELL_SECONDS = 1.0
"""For the nodes to read their last answers: one that finds none would look for us for long."""
MOST_SLOTS = 1 << 15
"""Nodes at one time."""
WELCOMES = 64
"""Nodes that are welcomed at one time, and places looked at that nobody filled."""
EMPTY_POLLS = 100
"""Times that a place is looked at before its node is given up that never said hello."""
MOST_BYTES = 4 << 20
"""Of one parcel."""
MOST_AT_ONCE = 64 << 20
"""Bytes of parcels that wait to be taken up; more stay in their boxes."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A node that wants to begin a correspondence, and what it says of itself."""

    slot: int
    card: Mapping[str, str]


@dataclass
class Hub:
    """Hosts the board at one of `ports`, sealed by `seal`. Start it once."""

    ports: tuple[int, ...]
    seal: Seal
    tally: Tally
    at: str = ""
    """The address of the head, where that is not here: whoever comes is sent on."""
    over: bool = False
    """Whether the run is: whoever comes is of another one, that has our name."""
    port: int = 0
    """Where it listens; 0 while it does not."""
    trouble: str = "the store is being opened"
    _hellos: deque[Hello] = field(default_factory=deque)
    _arrived: deque[tuple[int, bytes]] = field(default_factory=deque)
    _answers: dict[int, tuple[int, int, bool]] = field(default_factory=dict)
    _gone: deque[int] = field(default_factory=deque)
    _open: set[int] = field(default_factory=set)
    """Slots whose boxes are looked at: of welcomed nodes, but those not answered yet."""
    _awaited: dict[int, int] = field(default_factory=dict)
    _seen: int = 0
    _told_at: float = -inf
    """When somebody was last answered."""
    _birth: str = field(default_factory=lambda: token_hex(8))

    def __post_init__(self) -> None:
        self._said = self.at, self.over
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hub", daemon=True)

    def start(self) -> None:
        """Begin to listen, if that was not done."""
        if not self._thread.is_alive():
            self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Leave."""
        self._stop.set()
        self._thread.join(timeout)

    def hellos(self) -> list[Hello]:
        """Nodes that were not heard of before; each is to be answered with number 0, or dropped."""
        return _drained(self._hellos)

    def arrived(self) -> list[tuple[int, bytes]]:
        """Parcels by slot; each is to be answered, or its slot dropped."""
        return _drained(self._arrived)

    def answer(self, slot: int, number: int, row: int, *, deputy: bool = False) -> None:
        """Tell that node that its parcel was read, and its rows up to `row` are safe."""
        self._answers[slot] = number, row, deputy

    def drop(self, slot: int) -> None:
        """Be done with that correspondence."""
        self._gone.append(slot)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._serve()
            except BoardError as error:
                self.trouble = str(error)
            except Exception as error:
                log.exception("The board failed")
                self.trouble = f"{type(error).__name__}: {error}"
            self.port = 0
            self._stop.wait(PAUSE_SECONDS)

    def _serve(self) -> None:
        place = listener(self.ports)
        port = place.getsockname()[1]
        board = Board.host(place)
        try:
            self._open.clear()
            self._awaited.clear()
            self._birth = token_hex(8)
            # Not from 0: what is still to be said to nodes of the last store would reach others.
            self._count_on(board)
            self._put_up(board)
            self.port, self.trouble = port, ""
            while not self._stop.wait(POLL_SECONDS):
                self._turn(board)
            self._tell(board)
            time.sleep(max(0.0, self._told_at + FAREWELL_SECONDS - time.monotonic()))
        finally:
            board.close()

    def _put_up(self, board: Board) -> None:
        """The card that says who we are, or who is meant."""
        self._said = self.at, self.over
        told = {"birth": self._birth, "at": self.at, "over": self.over}
        card = json.dumps(told).encode()
        board.leave({CARD: self.seal.close(CARD, card)})

    def _turn(self, board: Board) -> None:
        if self._said != (self.at, self.over):
            self._put_up(board)
        self._tell(board)
        self._welcome(board)
        self._collect(board)

    def _tell(self, board: Board) -> None:
        told: dict[str, bytes] = {}
        if self._answers:
            self._told_at = time.monotonic()
        while self._answers:
            slot, (number, row, deputy) = self._answers.popitem()
            _, box, ack = slot_keys(slot)
            body = ANSWER.pack(number, row, deputy)
            # Emptied before it is answered: the node fills it again only then.
            told[box] = b""
            told[ack] = self.seal.close(f"{ack}/{self._birth}", body)
            self._open.add(slot)
        board.leave(told)
        for slot in _drained(self._gone):
            self._open.discard(slot)
            self._answers.pop(slot, None)
            board.remove(slot_keys(slot))

    def _welcome(self, board: Board) -> None:
        count = _number(board.read([SLOTS])[0]) if board.has(SLOTS) else -1
        if not self._seen <= count <= self._seen + MOST_SLOTS:
            # Anybody may write to it. Whoever came by honest ways comes again.
            self._refuse("damaged")
            self._count_on(board)
            count = self._seen
        for slot in range(self._seen + 1, min(count, self._seen + WELCOMES) + 1):
            self._seen = slot
            self._awaited[slot] = EMPTY_POLLS
        for slot, looks in [*self._awaited.items()]:
            hello, _, _ = slot_keys(slot)
            if board.has(hello):
                del self._awaited[slot]
                self._greet(board, slot)
            elif looks:
                self._awaited[slot] = looks - 1
            else:
                del self._awaited[slot]
        # Those who have said hello by now are welcome, however many there are.
        while len(self._awaited) > WELCOMES:
            self._awaited.pop(next(iter(self._awaited)))
            self._refuse("too_many")

    def _count_on(self, board: Board) -> None:
        board.leave({SLOTS: str(self._seen).encode()})

    def _greet(self, board: Board, slot: int) -> None:
        hello, _, _ = slot_keys(slot)
        (message,) = board.read([hello])
        if len(self._open) >= MOST_SLOTS:
            self._refuse("too_many")
            return
        try:
            told = json.loads(self.seal.open(f"{hello}/{self._birth}", message))
            card = {str(name): str(fact) for name, fact in told.items()}
        except RefusedError as refusal:
            self._refuse(refusal.reason)
        except (ValueError, AttributeError, RecursionError):
            self._refuse("damaged")
        else:
            self._hellos.append(Hello(slot, card))

    def _collect(self, board: Board) -> None:
        if sum(len(data) for _, data in self._arrived) > MOST_AT_ONCE:
            return
        for slot, message in self._boxes(board):
            if not message:
                continue
            _, box, _ = slot_keys(slot)
            try:
                body = self._opened(f"{box}/{self._birth}", message)
            except RefusedError as refusal:
                self._refuse(refusal.reason)
                board.leave({box: b""})
            else:
                self._open.discard(slot)
                self._arrived.append((slot, body))

    def _boxes(self, board: Board) -> list[tuple[int, bytes]]:
        """What lies in each box."""
        slots = sorted(self._open)
        boxes = [slot_keys(slot)[1] for slot in slots]
        try:
            return [*zip(slots, board.read(boxes) if boxes else (), strict=True)]
        except BoardError:
            # One that somebody took away is not waited for again; its node will begin anew.
            self._open -= {
                slot for slot, box in zip(slots, boxes, strict=True) if not board.has(box)
            }
            self._refuse("damaged")
            return []

    def _opened(self, purpose: str, message: bytes) -> bytes:
        if len(message) > MOST_BYTES + OVERHEAD:
            raise RefusedError("too_large", f"{len(message)} bytes are no parcel of ours.")
        return self.seal.open(purpose, message)

    def _refuse(self, reason: str) -> None:
        self.tally.add("sentinel_link_refused_total", reason)


def _drained(waiting: deque[Item]) -> list[Item]:
    found: list[Item] = []
    while waiting:
        found.append(waiting.popleft())
    return found


def _number(text: bytes) -> int:
    """What a counter of the store says, which anybody may have written to; below 0 if nonsense."""
    return int(text) if text.isdigit() and len(text) < 16 else -1
