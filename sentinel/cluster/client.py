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

from sentinel.cluster.authentication import MessageAuthenticator, RefusedMessageError
from sentinel.cluster.endpoints import (
    HEAD_INFO_KEY,
    SLOT_COUNTER_KEY,
    HeadEndpoint,
    format_address,
    head_endpoint,
    slot_keys,
)
from sentinel.cluster.message_store import MessageStore, MessageStoreError, shutdown_connections
from sentinel.model.counters import Counters
from sentinel.transport.rendezvous import NO_RENDEZVOUS

log = logging.getLogger(__name__)

EXCHANGE_INTERVAL_SECONDS = 0.2
IDLE_POLL_INTERVAL_SECONDS = 1.0
"""How often we look whether the head is still there, while nothing is to be said or answered."""
INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.5, 5.0
"""Seconds between two attempts to reach the head."""
JOIN_TIMEOUT_SECONDS = 10.0
ACK_TIMEOUT_SECONDS = 8.0
"""How long a parcel may lie unanswered: somebody may have taken it away, or its answer."""
CALL_TIMEOUT_SECONDS = 8.0
"""How long one call may last before its connection is cut."""
ACK_STRUCT = struct.Struct("<IQB")
"""Number of the parcel that is answered, the last row that is safe, whether we are the deputy."""


@dataclass(frozen=True, slots=True)
class MessageAck:
    """The head's word: all rows up to `row` are safe with it, and parcel `number` was read.

    `session` counts the correspondences; a new one begins with number 0 and a new `Writer`.
    """

    session: int
    message_number: int
    last_row: int
    is_deputy: bool


class ClusterClient:
    """Reaches the head at `where` says, with the `card` of this node. Start it once."""

    def __init__(
        self,
        find_endpoint: Callable[[], HeadEndpoint],
        authenticator: MessageAuthenticator,
        node_info: Mapping[str, str],
        counters: Counters,
    ) -> None:
        self._find_endpoint, self._authenticator, self._node_info, self._counters = (
            find_endpoint,
            authenticator,
            dict(node_info),
            counters,
        )
        self.last_ack: MessageAck | None = None
        self.is_connected = False
        self.error = "it has not been looked for yet"
        self.head_address = ""
        self._outgoing: tuple[int, bytes] | None = None
        self._sent_at = inf
        """When the parcel was left that is not answered yet."""
        self._session = 0
        self._last_progress_at = self._last_poll_at = time.monotonic()
        self._port = 0
        self._refusal_reported = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)

    def start(self) -> None:
        """Begin to look for the head."""
        self._thread.start()

    def request_stop(self) -> None:
        """Leave when the call under way is over."""
        self._stop.set()

    def stop(self, timeout: float = 5.0) -> None:
        """Leave now; whatever blocks is cut."""
        self.request_stop()
        self._thread.join(timeout=0.5)
        until = time.monotonic() + timeout
        while self._thread.is_alive() and time.monotonic() < until:
            # Again and again: whoever is cut while it connects tries once more.
            shutdown_connections(self._port)
            self._thread.join(timeout=0.1)

    def send(self, session: int, message: bytes) -> None:
        """Leave that parcel with the head, in that correspondence; the last must be answered."""
        self._outgoing = session, message

    def check_timeout(self) -> None:
        """Cut a call that takes too long. To be called often."""
        if time.monotonic() - self._last_progress_at > CALL_TIMEOUT_SECONDS:
            self._note_progress()
            shutdown_connections(self._port)

    def _run(self) -> None:
        pause = INITIAL_BACKOFF_SECONDS
        while not self._stop.is_set():
            before = self._session
            try:
                self._run_session()
            except RefusedMessageError as refusal:
                self._counters.add("sentinel_head_connection_rejected_total", refusal.reason)
                self.error = str(refusal)
            except MessageStoreError as error:
                self.error = str(error)
            except Exception as error:
                log.exception("The link to the head failed")
                self.error = f"{type(error).__name__}: {error}"
            self.is_connected = False
            self._note_progress()
            pause = (
                INITIAL_BACKOFF_SECONDS
                if self._session > before
                else min(2 * pause, MAX_BACKOFF_SECONDS)
            )
            self._stop.wait(pause)

    def _run_session(self) -> None:
        """One correspondence, until it breaks."""
        seal = self._authenticator
        board, birth = self._connect_to_head(seal)
        try:
            slot = self._send_hello(board, seal, birth)
            self._wait_until_accepted(board, seal, birth, slot)
            self.is_connected, self.error = True, ""
            while not self._stop.is_set():
                self._exchange(board, seal, birth, slot)
                self._stop.wait(EXCHANGE_INTERVAL_SECONDS)
        finally:
            board.close()

    def _connect_to_head(self, authenticator: MessageAuthenticator) -> tuple[MessageStore, str]:
        """The head's board, and the name of this life of it. Raises BoardError, RefusedError."""
        return self._connect_at(self._find_endpoint(), authenticator)

    def _connect_at(
        self,
        endpoint: HeadEndpoint,
        authenticator: MessageAuthenticator,
        *,
        is_redirected: bool = False,
    ) -> tuple[MessageStore, str]:
        refused = None
        if not endpoint.host:
            raise MessageStoreError("Nobody told where rank 0 is: set [cluster] head.")
        trouble = MessageStoreError(f"The stores at {endpoint.host} are not the head's.")
        for port in endpoint.ports:
            try:
                board = self._open_store(endpoint.host, port)
                self._note_progress()
                if not board.has(HEAD_INFO_KEY):
                    continue
                (card,) = board.read([HEAD_INFO_KEY])
                told = json.loads(authenticator.verify(HEAD_INFO_KEY, card))
                birth, at = str(told["birth"]), str(told.get("at", ""))
                if told.get("over") or format_address(endpoint.host, port) == self._node_info.get(
                    "elder"
                ):
                    # Its agent lingers, and the next run of that name meets at the next port; or
                    # it is ourselves.
                    continue
            except MessageStoreError as error:
                trouble = error
            except RefusedMessageError as refusal:
                # Of another job, maybe: ours may be at the next port.
                refused = refusal
                self._report_refusal(board, authenticator)
            except (ValueError, LookupError, TypeError):
                refused = RefusedMessageError(
                    "damaged", f"The card at {endpoint.host}:{port} is damaged."
                )
            else:
                if at and not is_redirected:
                    return self._connect_at(
                        head_endpoint(NO_RENDEZVOUS, at), authenticator, is_redirected=True
                    )
                self.head_address = format_address(endpoint.host, port)
                return board, birth
        raise refused or trouble

    def _open_store(self, host: str, port: int) -> MessageStore:
        self._port = port
        self._note_progress()
        return MessageStore.connect(host, port)

    def _send_hello(
        self, store: MessageStore, authenticator: MessageAuthenticator, instance_id: str
    ) -> int:
        """Say who we are, in a place of our own, whose number is returned."""
        self._note_progress()
        slot = store.increment(SLOT_COUNTER_KEY)
        hello, box, ack = slot_keys(slot)
        card = json.dumps({**self._node_info, "clock": repr(time.time())}).encode()
        store.write({box: b"", ack: b"", hello: authenticator.sign(f"{hello}/{instance_id}", card)})
        return slot

    def _report_refusal(self, store: MessageStore, authenticator: MessageAuthenticator) -> None:
        """Have a head that we cannot understand count us among those it refused."""
        if not self._refusal_reported:
            self._refusal_reported = True
            self._send_hello(store, authenticator, "")

    def _wait_until_accepted(
        self, store: MessageStore, authenticator: MessageAuthenticator, instance_id: str, slot: int
    ) -> None:
        self._outgoing, self._sent_at = None, inf
        until = time.monotonic() + JOIN_TIMEOUT_SECONDS
        while not self._poll_ack(store, authenticator, instance_id, slot):
            if time.monotonic() > until or self._stop.wait(EXCHANGE_INTERVAL_SECONDS):
                raise MessageStoreError("The head does not answer, though its store does.")

    def _poll_ack(
        self, store: MessageStore, authenticator: MessageAuthenticator, instance_id: str, slot: int
    ) -> bool:
        """Take up the head's newest word; whether there is one in this correspondence."""
        self._last_poll_at = time.monotonic()
        self._note_progress()
        _, box, ack = slot_keys(slot)
        message = store.peek(ack)
        if message is None:
            store.remove([box])
            raise MessageStoreError("The head has let go of this correspondence.")
        if not message:
            return False
        number, row, deputy = ACK_STRUCT.unpack(
            authenticator.verify(f"{ack}/{instance_id}", message)
        )
        if not number and not self.is_connected:
            self._session += 1
        last = self.last_ack
        # An old one may have been put back by somebody.
        if last is None or (self._session, number) > (last.session, last.message_number):
            self.last_ack, self._sent_at = MessageAck(self._session, number, row, bool(deputy)), inf
        return True

    def _exchange(
        self, store: MessageStore, authenticator: MessageAuthenticator, instance_id: str, slot: int
    ) -> None:
        parcel, self._outgoing = self._outgoing, None
        # Where nothing is awaited, that the head is there is all there is to see.
        if (
            self._sent_at < inf
            or time.monotonic() - self._last_poll_at >= IDLE_POLL_INTERVAL_SECONDS
        ):
            self._poll_ack(store, authenticator, instance_id, slot)
        if parcel is not None and parcel[0] == self._session:
            _, box, _ = slot_keys(slot)
            store.write({box: authenticator.sign(f"{box}/{instance_id}", parcel[1])})
            self._sent_at = time.monotonic()
        elif time.monotonic() - self._sent_at > ACK_TIMEOUT_SECONDS:
            raise MessageStoreError("The head does not answer, though its store does.")

    def _note_progress(self) -> None:
        self._last_progress_at = time.monotonic()
