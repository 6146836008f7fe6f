"""The head's end of the connections of all followers, in a thread of its own.

The thread hosts the store, accepts nodes, collects messages from their mailboxes, and writes
acknowledgements. The main loop of the agent drains what has arrived and decides what is
acknowledged; a mailbox stays full until then.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from secrets import token_hex
from typing import TypeVar

from sentinel.cluster.authentication import (
    OVERHEAD_BYTES,
    MessageAuthenticator,
    RefusedMessageError,
    count_refused,
)
from sentinel.cluster.message_store import MAX_STORE_BYTES, MessageStore, StoreProcessError
from sentinel.cluster.protocol import (
    ACK_STRUCT,
    HEAD_INFO_KEY,
    MAX_MESSAGE_BYTES,
    SLOT_COUNTER_KEY,
    HeadInfo,
    slot_keys,
)
from sentinel.cluster.sockets import (
    NoFreePortError,
    bind_first_free_port,
    count_accepted_connections,
    local_address,
)
from sentinel.cluster.torch_store import MessageStoreError
from sentinel.model.counters import Counters

Item = TypeVar("Item")

log = logging.getLogger(__name__)

POLL_INTERVAL_SECONDS = 0.2
RETRY_DELAY_SECONDS = 5.0
"""Delay before a store is opened again that could not be opened, or that failed."""
FINAL_ACK_SECONDS = 1.0
"""Time for the nodes to read their last acknowledgements. A node without one would search for the
head for a long time."""
MAX_SLOTS = 1 << 15
"""Connected nodes."""
MAX_PENDING_JOINS = 64
"""Slots that are taken and have no hello yet."""
MAX_EMPTY_POLLS = 100
"""Polls of a slot without a hello, after which it is ignored."""
FOREIGN_CHECK_SECONDS = 5.0
"""Interval at which foreign keys and connections are counted. One that is there at two checks
counts, since an agent that connects has no session yet."""
MAX_FOREIGN_KEYS = MAX_FOREIGN_CONNECTIONS = 1000
"""Foreign keys and connections above which the store is closed and opened again: torch neither
removes nor closes one of them."""
MAX_STORE_BYTES_PER_NODE = 1 << 20
"""Memory of the store, besides `MAX_STORE_BYTES`. Above half of both the store is closed and opened
again; a connection whose message exceeds them is closed by torch."""
FLOOD_SECONDS = 15.0
"""How long after its last sign a flood lasts: nodes need some seconds to connect again."""
MAX_RECEIVED_BYTES = 64 << 20
"""Size limit of received messages that are not drained yet; others stay in their mailboxes."""


class StoreFloodedError(MessageStoreError):
    """Foreign data fill the store, and only closing it ends that."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A node that wants to start a session, and its node info."""

    slot: int
    node_info: Mapping[str, str]


@dataclass
class ClusterServer:
    """Hosts the store at the first free one of `ports`. Call `start` once.

    It listens at the interface of this node that `listen_host` names; at all if that is "" or names
    none.
    """

    ports: tuple[int, ...]
    authenticator: MessageAuthenticator
    counters: Counters
    redirect_to: str = ""
    """Address of the head, if it is another agent: clients are redirected there."""
    run_finished: bool = False
    """Whether every rank of the run has ended: new clients belong to another run of that name."""
    report: bytes = b""
    """The head's report on the run, as JSON, which goes with each acknowledgement."""
    listen_host: str = ""
    listen_address: str = ""
    """The address of the interface that the store listens at; "" is all interfaces."""
    port: int = 0
    """The port of the store; 0 while there is none."""
    error: str = "the store is being opened"
    store_count: int = 0
    """How many stores were opened, one after the other. Each begins without nodes."""
    open_store: Callable[[socket.socket], MessageStore] = MessageStore.host
    """Hosts a store on a listening socket."""
    _hellos: deque[Hello] = field(default_factory=deque)
    _received: deque[tuple[int, bytes]] = field(default_factory=deque)
    _pending_acks: dict[int, tuple[int, int, bool]] = field(default_factory=dict)
    _dropped_slots: deque[int] = field(default_factory=deque)
    _open_slots: set[int] = field(default_factory=set)
    """Slots of accepted nodes whose mailbox may be filled: the last message is acknowledged."""
    _pending_joins: dict[int, int] = field(default_factory=dict)
    _sessions: set[int] = field(default_factory=set)
    """Slots of nodes that sent a hello and are not dropped."""
    _first_slot: int = 0
    """The last slot before this store."""
    _taken_slots: int = 0
    """The last slot that a node has taken, whose hello may not be read yet."""
    _removed_slots: int = 0
    _foreign: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By reason, how many foreign items there were at the last check, and how many are counted."""
    _foreign_checked_at: float = 0.0
    _max_store_bytes: int = 0
    _flood: str = ""
    _flooded_at: float = -inf
    _closed_by_flood: int = 0
    """How often the store was closed since the flood began, after the first time."""
    _last_slot: int = 0
    _last_ack_at: float = -inf
    """When an acknowledgement was last written."""
    _instance_id: str = field(default_factory=lambda: token_hex(8))

    def __post_init__(self) -> None:
        self._published = self._head_info()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cluster-server", daemon=True)

    def start(self) -> None:
        """Begin to serve, unless that is done."""
        if not self._thread.is_alive():
            self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End, after the last acknowledgements."""
        self._stop.set()
        self._thread.join(timeout)

    def drain_hellos(self) -> list[Hello]:
        """New nodes. Acknowledge each with message number 0, or drop its slot."""
        return _drain(self._hellos)

    def drain_messages(self, max_bytes: int = MAX_RECEIVED_BYTES) -> list[tuple[int, bytes]]:
        """Received messages by slot, at least one, up to about `max_bytes`.

        Acknowledge each, or drop its slot.
        """
        messages: list[tuple[int, bytes]] = []
        size = 0
        while self._received and size < max_bytes:
            messages.append(self._received.popleft())
            size += len(messages[-1][1])
        return messages

    def waiting_slots(self) -> set[int]:
        """Slots with messages that are not drained."""
        return {slot for slot, _ in [*self._received]}

    def acknowledge(
        self, slot: int, message_number: int, last_row: int, *, is_deputy: bool = False
    ) -> None:
        """Acknowledge a message of that node, and all its rows up to `last_row`."""
        self._pending_acks[slot] = message_number, last_row, is_deputy

    def drop_slot(self, slot: int) -> None:
        """End the session of that slot."""
        self._dropped_slots.append(slot)

    @property
    def flood(self) -> str:
        """How foreign data fill the store, as a sentence; "" if none do, or have lately."""
        return self._flood if time.monotonic() - self._flooded_at < FLOOD_SECONDS else ""

    def _run(self) -> None:
        while not self._stop.is_set():
            delay = RETRY_DELAY_SECONDS
            try:
                self._serve()
            except (StoreFloodedError, StoreProcessError) as error:
                self.error = str(error)
                # At once at first, so that the other nodes soon connect again.
                self._closed_by_flood = self._closed_by_flood + 1 if self.flood else 0
                delay = min(delay, self._closed_by_flood)
                self._note_flood(str(error))
            except (MessageStoreError, NoFreePortError) as error:
                self.error = str(error)
            except Exception as error:
                log.exception("The message store failed")
                self.error = f"{type(error).__name__}: {error}"
            self.port = 0
            self._stop.wait(delay)

    def _serve(self) -> None:
        self.listen_address = local_address(self.listen_host)
        listener = bind_first_free_port(self.ports, self.listen_address)
        port = listener.getsockname()[1]
        store = self.open_store(listener)
        try:
            self._open_slots.clear()
            self._pending_joins.clear()
            self._instance_id = token_hex(8)
            # Slots do not start at 0 again: pending acknowledgements are for slots of the last
            # store and must not reach other nodes.
            self._write_slot_counter(store)
            self._publish_head_info(store)
            self.store_count += 1
            self.port, self.error = port, ""
            self._sessions.clear()
            self._first_slot = self._taken_slots = self._last_slot
            self._removed_slots = 0
            self._foreign, self._max_store_bytes = {}, 0
            self._limit_memory(store)
            while not self._stop.wait(POLL_INTERVAL_SECONDS):
                self._poll_store(store)
                self._count_foreign(store, port)
                self._check_size(store)
            self._send_acks(store)
            time.sleep(max(0.0, self._last_ack_at + FINAL_ACK_SECONDS - time.monotonic()))
        except MessageStoreError as error:
            size = store.memory_bytes
            if size > self._max_store_bytes // 2:
                raise StoreFloodedError(f"{error} It took {size >> 20} MiB.") from None
            raise
        finally:
            store.close()

    def _head_info(self) -> HeadInfo:
        return HeadInfo(
            self._instance_id, self.redirect_to, self.run_finished, is_flooded=bool(self.flood)
        )

    def _publish_head_info(self, store: MessageStore) -> None:
        self._published = self._head_info()
        message = self.authenticator.sign(HEAD_INFO_KEY, self._published.serialize())
        store.write({HEAD_INFO_KEY: message})

    def _poll_store(self, store: MessageStore) -> None:
        if self._published != self._head_info():
            self._publish_head_info(store)
        self._send_acks(store)
        self._accept_joins(store)
        self._collect_messages(store)

    def _send_acks(self, store: MessageStore) -> None:
        values: dict[str, bytes] = {}
        if self._pending_acks:
            self._last_ack_at = time.monotonic()
        while self._pending_acks:
            slot, ack = self._pending_acks.popitem()
            keys = slot_keys(slot)
            # The mailbox is emptied first: the node fills it again once it has the ack.
            values[keys.mailbox] = b""
            values[keys.ack] = self.authenticator.sign(
                f"{keys.ack}/{self._instance_id}", ACK_STRUCT.pack(*ack) + self.report
            )
            self._open_slots.add(slot)
        store.write(values)
        for slot in _drain(self._dropped_slots):
            self._open_slots.discard(slot)
            self._sessions.discard(slot)
            self._removed_slots += 1
            self._pending_acks.pop(slot, None)
            store.remove(slot_keys(slot))

    def _accept_joins(self, store: MessageStore) -> None:
        count = (
            _parse_slot_counter(store.read([SLOT_COUNTER_KEY])[0])
            if store.has(SLOT_COUNTER_KEY)
            else -1
        )
        if not self._last_slot <= count <= self._last_slot + MAX_SLOTS:
            # Any process may write to the counter. A node whose slot is lost takes another.
            count_refused(self.counters, "damaged")
            self._write_slot_counter(store)
            count = self._last_slot
        self._taken_slots = count
        for slot in range(self._last_slot + 1, min(count, self._last_slot + MAX_PENDING_JOINS) + 1):
            self._last_slot = slot
            self._pending_joins[slot] = MAX_EMPTY_POLLS
        for slot, polls_left in [*self._pending_joins.items()]:
            if store.has(slot_keys(slot).hello):
                del self._pending_joins[slot]
                self._read_hello(store, slot)
            elif polls_left:
                self._pending_joins[slot] = polls_left - 1
            else:
                del self._pending_joins[slot]
        # After the loop: all nodes that have sent a hello are accepted, however many there are.
        while len(self._pending_joins) > MAX_PENDING_JOINS:
            self._pending_joins.pop(next(iter(self._pending_joins)))
            count_refused(self.counters, "too_many")

    def _write_slot_counter(self, store: MessageStore) -> None:
        store.write({SLOT_COUNTER_KEY: str(self._last_slot).encode()})

    def _read_hello(self, store: MessageStore, slot: int) -> None:
        key = slot_keys(slot).hello
        (message,) = store.read([key])
        if len(self._open_slots) >= MAX_SLOTS:
            count_refused(self.counters, "too_many")
            return
        try:
            fields = json.loads(self.authenticator.verify(f"{key}/{self._instance_id}", message))
            node_info = {str(name): str(value) for name, value in fields.items()}
        except RefusedMessageError as refusal:
            count_refused(self.counters, refusal.reason)
        except (ValueError, AttributeError, RecursionError):
            count_refused(self.counters, "damaged")
        else:
            self._sessions.add(slot)
            self._hellos.append(Hello(slot, node_info))

    def _count_foreign(self, store: MessageStore, port: int) -> None:
        """Count keys and connections that belong to no agent."""
        now = time.monotonic()
        if now - self._foreign_checked_at < FOREIGN_CHECK_SECONDS:
            return
        self._foreign_checked_at = now
        # Our own connection is none of a node.
        connections = count_accepted_connections(port) - 1 - len(self._sessions)
        self._count_refused("foreign_key", self._foreign_key_count(store))
        before, _ = self._foreign.get("foreign_connection", (0, 0))
        self._count_refused("foreign_connection", connections)
        # Nodes of a large job that connect at once are none at the next check.
        if min(before, connections) > MAX_FOREIGN_CONNECTIONS:
            raise StoreFloodedError(f"It had {connections:,} connections of no agent.")

    def _count_refused(self, reason: str, number: int) -> None:
        previous, counted = self._foreign.get(reason, (0, 0))
        new = max(0, min(previous, number) - counted)
        if new:
            count_refused(self.counters, reason, new)
        self._foreign[reason] = number, counted + new

    def _foreign_key_count(self, store: MessageStore) -> int:
        slots = self._taken_slots - self._first_slot - self._removed_slots
        # The head info, the slot counter, and the keys of each slot.
        return store.count_keys() - 2 - len(slot_keys(0)) * max(0, slots)

    def _check_size(self, store: MessageStore) -> None:
        """Raise StoreFloodedError if foreign data fill the store."""
        self._limit_memory(store)
        count, size = self._foreign_key_count(store), store.memory_bytes
        if count <= MAX_FOREIGN_KEYS and size <= self._max_store_bytes // 2:
            return
        _, counted = self._foreign.get("foreign_key", (0, 0))
        if count > counted:
            count_refused(self.counters, "foreign_key", count - counted)
        raise StoreFloodedError(f"It had {count:,} keys of no agent.")

    def _limit_memory(self, store: MessageStore) -> None:
        """Adapt the limit of the store to the number of nodes."""
        limit = MAX_STORE_BYTES + MAX_STORE_BYTES_PER_NODE * len(self._sessions)
        if limit != self._max_store_bytes:
            self._max_store_bytes = limit
            store.limit_memory(limit)

    def _note_flood(self, reason: str) -> None:
        self._flood = f"The message store was closed and opened again. {reason}"
        self._flooded_at = time.monotonic()
        log.warning("%s", self._flood)
        count_refused(self.counters, "flood")

    def _collect_messages(self, store: MessageStore) -> None:
        if sum(len(body) for _, body in self._received) > MAX_RECEIVED_BYTES:
            return
        for slot, message in self._read_mailboxes(store):
            if not message:
                continue
            key = slot_keys(slot).mailbox
            try:
                body = self._verified_body(f"{key}/{self._instance_id}", message)
            except RefusedMessageError as refusal:
                # A message that is written once the refusal is known must stay.
                store.write({key: b""})
                count_refused(self.counters, refusal.reason)
            else:
                self._open_slots.discard(slot)
                self._received.append((slot, body))

    def _read_mailboxes(self, store: MessageStore) -> list[tuple[int, bytes]]:
        """The content of each open mailbox, by slot."""
        slots = sorted(self._open_slots)
        keys = [slot_keys(slot).mailbox for slot in slots]
        try:
            return [*zip(slots, store.read(keys) if keys else (), strict=True)]
        except MessageStoreError:
            # Another process has deleted a mailbox: stop reading it. Its node starts a new session.
            self._open_slots -= {
                slot for slot, key in zip(slots, keys, strict=True) if not store.has(key)
            }
            count_refused(self.counters, "damaged")
            return []

    def _verified_body(self, purpose: str, message: bytes) -> bytes:
        if len(message) > MAX_MESSAGE_BYTES + OVERHEAD_BYTES:
            error = f"A message of {len(message)} bytes exceeds the limit of {MAX_MESSAGE_BYTES}."
            raise RefusedMessageError("too_large", error)
        return self.authenticator.verify(purpose, message)


def _drain(queue: deque[Item]) -> list[Item]:
    items: list[Item] = []
    while queue:
        items.append(queue.popleft())
    return items


def _parse_slot_counter(text: bytes) -> int:
    """The slot counter; -1 for anything that is no number below 10**15."""
    return int(text) if text.isdigit() and len(text) < 16 else -1
