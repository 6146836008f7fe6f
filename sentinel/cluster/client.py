"""A follower's connection to the head, in a thread of its own.

The thread finds the head, sends the hello, writes one message at a time to its mailbox, and polls
for the acknowledgement. After any error it closes the connection and starts a new session. The main
loop of the agent only exchanges data with the thread.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from math import inf

from sentinel.cluster.authentication import MessageAuthenticator, RefusedMessageError, count_refused
from sentinel.cluster.endpoints import HeadEndpoint, format_address, head_endpoint
from sentinel.cluster.message_store import MessageStore
from sentinel.cluster.protocol import (
    ACK_STRUCT,
    HEAD_INFO_KEY,
    SLOT_COUNTER_KEY,
    HeadInfo,
    SlotKeys,
    slot_keys,
)
from sentinel.cluster.torch_store import CONNECT_TIMEOUT_SECONDS, MessageStoreError
from sentinel.model.counters import Counters
from sentinel.transport.rendezvous import NO_RENDEZVOUS

log = logging.getLogger(__name__)

EXCHANGE_INTERVAL_SECONDS = 0.2
IDLE_POLL_INTERVAL_SECONDS = 1.0
"""Interval of checks that the head is still there, while no acknowledgement is awaited."""
INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.5, 5.0
"""Delay between two attempts to reach the head."""
JOIN_TIMEOUT_SECONDS = 10.0
ACK_TIMEOUT_SECONDS = 8.0
"""After which an unacknowledged message, or its acknowledgement, is assumed to be deleted."""

_NO_ACK_ERROR = "The head does not answer, though its store does."


@dataclass(frozen=True, slots=True)
class MessageAck:
    """The head's acknowledgement of message `message_number` and of all rows up to `last_row`.

    `session` counts the sessions of this client. Each begins with number 0 and a new BatchEncoder.
    `report` is the head's report on the run, as JSON or empty.
    """

    session: int
    message_number: int
    last_row: int
    is_deputy: bool
    report: bytes = b""


@dataclass
class _Session:
    """One connection to a store of the head, and the slot in it. Methods raise MessageStoreError.

    `instance_id` is that of the store, and part of each signature.
    """

    store: MessageStore
    authenticator: MessageAuthenticator
    instance_id: str
    keys: SlotKeys = field(init=False)

    def send_hello(self, node_info: Mapping[str, str]) -> None:
        """Take a new slot and write the node info there."""
        self.keys = slot_keys(self.store.increment(SLOT_COUNTER_KEY))
        body = json.dumps({**node_info, "clock": repr(time.time())}).encode()
        self.store.write(
            {
                self.keys.mailbox: b"",
                self.keys.ack: b"",
                self.keys.hello: self._sign(self.keys.hello, body),
            }
        )

    def read_ack(self) -> tuple[int, int, bool, bytes] | None:
        """Number, last row, deputy flag and report of the newest acknowledgement; None before any.

        Raises RefusedMessageError too.
        """
        message = self.store.peek(self.keys.ack)
        if message is None:
            self.store.remove([self.keys.mailbox])
            raise MessageStoreError("The head has dropped this session.")
        if not message:
            return None
        body = self.authenticator.verify(f"{self.keys.ack}/{self.instance_id}", message)
        if len(body) < ACK_STRUCT.size:
            raise RefusedMessageError("damaged", "The acknowledgement of the head is too short.")
        number, last_row, is_deputy = ACK_STRUCT.unpack_from(body)
        return number, last_row, bool(is_deputy), body[ACK_STRUCT.size :]

    def write_message(self, body: bytes) -> None:
        """Write a message to the mailbox."""
        self.store.write({self.keys.mailbox: self._sign(self.keys.mailbox, body)})

    def _sign(self, key: str, body: bytes) -> bytes:
        return self.authenticator.sign(f"{key}/{self.instance_id}", body)


class ClusterClient:
    """Connects to the head that `find_endpoint` returns. Call `start` once.

    `node_info` describes this node: host, run, and spool_id; of a head that announces itself
    elsewhere, established_head.
    """

    def __init__(
        self,
        find_endpoint: Callable[[], HeadEndpoint],
        authenticator: MessageAuthenticator,
        node_info: Mapping[str, str],
        counters: Counters,
        store: MessageStore | None = None,
    ) -> None:
        self._find_endpoint, self._authenticator = find_endpoint, authenticator
        self._node_info, self._counters = dict(node_info), counters
        self.last_ack: MessageAck | None = None
        self.is_connected = False
        self.error = "the head has not been searched for yet"
        self.head_address = ""
        self.is_head_flooded = False
        """Whether other programs flooded the store of the head when it last answered."""
        self._outgoing: tuple[int, bytes] | None = None
        self._sent_at = inf
        """When the message was written that is not acknowledged yet."""
        self._session_number = 0
        self._last_poll_at = time.monotonic()
        self._store = MessageStore() if store is None else store
        self._is_refusal_reported = False
        self._stop = threading.Event()
        self._search_now = threading.Event()
        """Ends the delay before the next search."""
        self._thread = threading.Thread(target=self._run, name="cluster-client", daemon=True)

    def start(self) -> None:
        """Begin to search for the head."""
        self._thread.start()

    def request_stop(self) -> None:
        """End after the current call."""
        self._stop.set()
        self._search_now.set()

    def stop(self, timeout: float = 5.0) -> None:
        """End now; a blocked call raises."""
        self.request_stop()
        self._thread.join(timeout=0.5)
        self._store.abort()
        self._thread.join(timeout)

    def is_head_reachable(self) -> bool:
        """Whether the head answers, or its port accepts connections; then it is searched at once.

        Takes CONNECT_TIMEOUT_SECONDS at most, too long for the main loop.
        """
        if self.is_connected or not self.head_address:
            return self.is_connected
        endpoint = head_endpoint(NO_RENDEZVOUS, self.head_address)
        try:
            address = endpoint.host, endpoint.ports[0]
            socket.create_connection(address, CONNECT_TIMEOUT_SECONDS).close()
        except OSError:
            return False
        self._search_now.set()
        return True

    def send(self, session: int, message: bytes) -> None:
        """Send a message in that session; the previous one must be acknowledged."""
        self._outgoing = session, message

    def _run(self) -> None:
        with closing(self._store):
            self._search()

    def _search(self) -> None:
        backoff = INITIAL_BACKOFF_SECONDS
        while not self._stop.is_set():
            previous_session = self._session_number
            try:
                self._run_session()
            except RefusedMessageError as refusal:
                count_refused(self._counters, refusal.reason)
                self.error = str(refusal)
            except MessageStoreError as error:
                self.error = str(error)
            except Exception as error:
                log.exception("The connection to the head failed")
                self.error = f"{type(error).__name__}: {error}"
            self.is_connected = False
            backoff = (
                INITIAL_BACKOFF_SECONDS
                if self._session_number > previous_session or self.is_head_flooded
                else min(2 * backoff, MAX_BACKOFF_SECONDS)
            )
            self._search_now.wait(backoff)
            if not self._stop.is_set():
                self._search_now.clear()

    def _run_session(self) -> None:
        """One session, until it fails."""
        try:
            session = self._connect_to_head(self._find_endpoint())
            session.send_hello(self._node_info)
            self._wait_until_accepted(session)
            self.is_connected, self.error = True, ""
            while not self._stop.is_set():
                self._exchange(session)
                self._stop.wait(EXCHANGE_INTERVAL_SECONDS)
        finally:
            self._store.disconnect()

    def _connect_to_head(self, endpoint: HeadEndpoint, *, is_redirected: bool = False) -> _Session:
        """Connect to the first port with a head of this job; follow one redirect.

        Raises MessageStoreError or RefusedMessageError.
        """
        if not endpoint.host:
            raise MessageStoreError("The address of rank 0 is unknown: set [cluster] head.")
        store, refused = self._store, None
        failure = MessageStoreError(f"The stores at {endpoint.host} do not belong to the head.")
        for port in endpoint.ports:
            address = format_address(endpoint.host, port)
            try:
                store.connect(endpoint.host, port)
                if not store.has(HEAD_INFO_KEY):
                    continue
                (message,) = store.read([HEAD_INFO_KEY])
                head = HeadInfo.deserialize(self._authenticator.verify(HEAD_INFO_KEY, message))
                self.is_head_flooded = head.is_flooded
            except MessageStoreError as error:
                failure = error
            except RefusedMessageError as refusal:
                # Perhaps the head of another job; this job's may be at the next port.
                refused = refusal
                self._report_refusal(store)
            except (ValueError, LookupError, TypeError):
                refused = RefusedMessageError("damaged", f"The head info at {address} is damaged.")
            else:
                if head.run_finished or address == self._node_info.get("established_head"):
                    # The agent of a finished run lingers, and the next run of that name uses the
                    # next port; or this is the agent itself.
                    continue
                if head.redirect_to and not is_redirected:
                    target = head_endpoint(NO_RENDEZVOUS, head.redirect_to)
                    return self._connect_to_head(target, is_redirected=True)
                self.head_address = address
                return _Session(store, self._authenticator, head.instance_id)
        raise refused or failure

    def _report_refusal(self, store: MessageStore) -> None:
        """Send a hello that this head refuses and counts, once."""
        if not self._is_refusal_reported:
            self._is_refusal_reported = True
            _Session(store, self._authenticator, "").send_hello(self._node_info)

    def _wait_until_accepted(self, session: _Session) -> None:
        self._outgoing, self._sent_at = None, inf
        deadline = time.monotonic() + JOIN_TIMEOUT_SECONDS
        while not self._poll_ack(session):
            if time.monotonic() > deadline or self._stop.wait(EXCHANGE_INTERVAL_SECONDS):
                raise MessageStoreError(_NO_ACK_ERROR)

    def _poll_ack(self, session: _Session) -> bool:
        """Read the newest acknowledgement; whether there is one in this session."""
        self._last_poll_at = time.monotonic()
        ack = session.read_ack()
        if ack is None:
            return False
        number, last_row, is_deputy, report = ack
        if not number and not self.is_connected:
            self._session_number += 1
        last = self.last_ack
        # Another process may have restored an old acknowledgement.
        if last is None or (self._session_number, number) > (last.session, last.message_number):
            self.is_head_flooded = False
            self.last_ack = MessageAck(self._session_number, number, last_row, is_deputy, report)
            self._sent_at = inf
        return True

    def _exchange(self, session: _Session) -> None:
        outgoing, self._outgoing = self._outgoing, None
        # If no acknowledgement is awaited, only check from time to time that the head is there.
        if (
            self._sent_at < inf
            or time.monotonic() - self._last_poll_at >= IDLE_POLL_INTERVAL_SECONDS
        ):
            self._poll_ack(session)
        if outgoing is not None and outgoing[0] == self._session_number:
            session.write_message(outgoing[1])
            self._sent_at = time.monotonic()
        elif time.monotonic() - self._sent_at > ACK_TIMEOUT_SECONDS:
            raise MessageStoreError(_NO_ACK_ERROR)
