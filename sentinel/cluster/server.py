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

from sentinel.cluster.authentication import (
    OVERHEAD_BYTES,
    MessageAuthenticator,
    RefusedMessageError,
)
from sentinel.cluster.client import ACK_STRUCT
from sentinel.cluster.endpoints import HEAD_INFO_KEY, SLOT_COUNTER_KEY, slot_keys
from sentinel.cluster.message_store import MessageStore, MessageStoreError, bind_first_free_port
from sentinel.model.counters import Counters

Item = TypeVar("Item")

log = logging.getLogger(__name__)

POLL_INTERVAL_SECONDS = 0.2
RETRY_DELAY_SECONDS = 5.0
"""Until the store is tried again that could not be hosted, or failed."""
FINAL_ACK_SECONDS = 1.0
"""For the nodes to read their last answers: one that finds none would look for us for long."""
MAX_SLOTS = 1 << 15
"""Nodes at one time."""
MAX_PENDING_JOINS = 64
"""Nodes that are welcomed at one time, and places looked at that nobody filled."""
MAX_EMPTY_POLLS = 100
"""Times that a place is looked at before its node is given up that never said hello."""
MAX_MESSAGE_BYTES = 4 << 20
"""Of one parcel."""
MAX_RECEIVED_BYTES = 64 << 20
"""Bytes of parcels that wait to be taken up; more stay in their boxes."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A node that wants to begin a correspondence, and what it says of itself."""

    slot: int
    node_info: Mapping[str, str]


@dataclass
class ClusterServer:
    """Hosts the board at one of `ports`, sealed by `seal`. Start it once."""

    ports: tuple[int, ...]
    authenticator: MessageAuthenticator
    counters: Counters
    redirect_to: str = ""
    """The address of the head, where that is not here: whoever comes is sent on."""
    run_finished: bool = False
    """Whether the run is: whoever comes is of another one, that has our name."""
    port: int = 0
    """Where it listens; 0 while it does not."""
    error: str = "the store is being opened"
    _hellos: deque[Hello] = field(default_factory=deque)
    _received: deque[tuple[int, bytes]] = field(default_factory=deque)
    _pending_acks: dict[int, tuple[int, int, bool]] = field(default_factory=dict)
    _dropped_slots: deque[int] = field(default_factory=deque)
    _open_slots: set[int] = field(default_factory=set)
    """Slots whose boxes are looked at: of welcomed nodes, but those not answered yet."""
    _pending_joins: dict[int, int] = field(default_factory=dict)
    _last_slot: int = 0
    _last_ack_at: float = -inf
    """When somebody was last answered."""
    _instance_id: str = field(default_factory=lambda: token_hex(8))

    def __post_init__(self) -> None:
        self._published = self.redirect_to, self.run_finished
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

    def drain_hellos(self) -> list[Hello]:
        """Nodes that were not heard of before; each is to be answered with number 0, or dropped."""
        return _drain(self._hellos)

    def drain_messages(self) -> list[tuple[int, bytes]]:
        """Parcels by slot; each is to be answered, or its slot dropped."""
        return _drain(self._received)

    def acknowledge(
        self, slot: int, message_number: int, last_row: int, *, is_deputy: bool = False
    ) -> None:
        """Tell that node that its parcel was read, and its rows up to `row` are safe."""
        self._pending_acks[slot] = message_number, last_row, is_deputy

    def drop_slot(self, slot: int) -> None:
        """Be done with that correspondence."""
        self._dropped_slots.append(slot)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._serve()
            except MessageStoreError as error:
                self.error = str(error)
            except Exception as error:
                log.exception("The board failed")
                self.error = f"{type(error).__name__}: {error}"
            self.port = 0
            self._stop.wait(RETRY_DELAY_SECONDS)

    def _serve(self) -> None:
        place = bind_first_free_port(self.ports)
        port = place.getsockname()[1]
        board = MessageStore.host(place)
        try:
            self._open_slots.clear()
            self._pending_joins.clear()
            self._instance_id = token_hex(8)
            # Not from 0: what is still to be said to nodes of the last store would reach others.
            self._write_slot_counter(board)
            self._publish_head_info(board)
            self.port, self.error = port, ""
            while not self._stop.wait(POLL_INTERVAL_SECONDS):
                self._poll_store(board)
            self._send_acks(board)
            time.sleep(max(0.0, self._last_ack_at + FINAL_ACK_SECONDS - time.monotonic()))
        finally:
            board.close()

    def _publish_head_info(self, store: MessageStore) -> None:
        """The card that says who we are, or who is meant."""
        self._published = self.redirect_to, self.run_finished
        told = {"birth": self._instance_id, "at": self.redirect_to, "over": self.run_finished}
        card = json.dumps(told).encode()
        store.write({HEAD_INFO_KEY: self.authenticator.sign(HEAD_INFO_KEY, card)})

    def _poll_store(self, store: MessageStore) -> None:
        if self._published != (self.redirect_to, self.run_finished):
            self._publish_head_info(store)
        self._send_acks(store)
        self._accept_joins(store)
        self._collect_messages(store)

    def _send_acks(self, store: MessageStore) -> None:
        told: dict[str, bytes] = {}
        if self._pending_acks:
            self._last_ack_at = time.monotonic()
        while self._pending_acks:
            slot, (number, row, deputy) = self._pending_acks.popitem()
            _, box, ack = slot_keys(slot)
            body = ACK_STRUCT.pack(number, row, deputy)
            # Emptied before it is answered: the node fills it again only then.
            told[box] = b""
            told[ack] = self.authenticator.sign(f"{ack}/{self._instance_id}", body)
            self._open_slots.add(slot)
        store.write(told)
        for slot in _drain(self._dropped_slots):
            self._open_slots.discard(slot)
            self._pending_acks.pop(slot, None)
            store.remove(slot_keys(slot))

    def _accept_joins(self, store: MessageStore) -> None:
        count = (
            _parse_slot_counter(store.read([SLOT_COUNTER_KEY])[0])
            if store.has(SLOT_COUNTER_KEY)
            else -1
        )
        if not self._last_slot <= count <= self._last_slot + MAX_SLOTS:
            # Anybody may write to it. Whoever came by honest ways comes again.
            self._count_refused("damaged")
            self._write_slot_counter(store)
            count = self._last_slot
        for slot in range(self._last_slot + 1, min(count, self._last_slot + MAX_PENDING_JOINS) + 1):
            self._last_slot = slot
            self._pending_joins[slot] = MAX_EMPTY_POLLS
        for slot, looks in [*self._pending_joins.items()]:
            hello, _, _ = slot_keys(slot)
            if store.has(hello):
                del self._pending_joins[slot]
                self._read_hello(store, slot)
            elif looks:
                self._pending_joins[slot] = looks - 1
            else:
                del self._pending_joins[slot]
        # Those who have said hello by now are welcome, however many there are.
        while len(self._pending_joins) > MAX_PENDING_JOINS:
            self._pending_joins.pop(next(iter(self._pending_joins)))
            self._count_refused("too_many")

    def _write_slot_counter(self, store: MessageStore) -> None:
        store.write({SLOT_COUNTER_KEY: str(self._last_slot).encode()})

    def _read_hello(self, store: MessageStore, slot: int) -> None:
        hello, _, _ = slot_keys(slot)
        (message,) = store.read([hello])
        if len(self._open_slots) >= MAX_SLOTS:
            self._count_refused("too_many")
            return
        try:
            told = json.loads(self.authenticator.verify(f"{hello}/{self._instance_id}", message))
            card = {str(name): str(fact) for name, fact in told.items()}
        except RefusedMessageError as refusal:
            self._count_refused(refusal.reason)
        except (ValueError, AttributeError, RecursionError):
            self._count_refused("damaged")
        else:
            self._hellos.append(Hello(slot, card))

    def _collect_messages(self, store: MessageStore) -> None:
        if sum(len(data) for _, data in self._received) > MAX_RECEIVED_BYTES:
            return
        for slot, message in self._read_mailboxes(store):
            if not message:
                continue
            _, box, _ = slot_keys(slot)
            try:
                body = self._verified_body(f"{box}/{self._instance_id}", message)
            except RefusedMessageError as refusal:
                self._count_refused(refusal.reason)
                store.write({box: b""})
            else:
                self._open_slots.discard(slot)
                self._received.append((slot, body))

    def _read_mailboxes(self, store: MessageStore) -> list[tuple[int, bytes]]:
        """What lies in each box."""
        slots = sorted(self._open_slots)
        boxes = [slot_keys(slot)[1] for slot in slots]
        try:
            return [*zip(slots, store.read(boxes) if boxes else (), strict=True)]
        except MessageStoreError:
            # One that somebody took away is not waited for again; its node will begin anew.
            self._open_slots -= {
                slot for slot, box in zip(slots, boxes, strict=True) if not store.has(box)
            }
            self._count_refused("damaged")
            return []

    def _verified_body(self, purpose: str, message: bytes) -> bytes:
        if len(message) > MAX_MESSAGE_BYTES + OVERHEAD_BYTES:
            raise RefusedMessageError("too_large", f"{len(message)} bytes are no parcel of ours.")
        return self.authenticator.verify(purpose, message)

    def _count_refused(self, reason: str) -> None:
        self.counters.add("sentinel_head_connection_rejected_total", reason)


def _drain(queue: deque[Item]) -> list[Item]:
    found: list[Item] = []
    while queue:
        found.append(queue.popleft())
    return found


def _parse_slot_counter(text: bytes) -> int:
    """What a counter of the store says, which anybody may have written to; below 0 if nonsense."""
    return int(text) if text.isdigit() and len(text) < 16 else -1
