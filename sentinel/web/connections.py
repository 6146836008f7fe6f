"""Accepts the connections of the web server, and limits how many there are and how long they wait.

At most `MAX_CONNECTIONS` are open. To make room, the connection is closed that has been waiting
longest for its peer: in the TLS handshake, between two requests, in the middle of a request, or
because the peer does not read. So a probe or a scrape is answered beside any number of idle
connections, unless `MAX_CONNECTIONS` others are opened while its request is on the way.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from resource import RLIMIT_NOFILE, getrlimit
from ssl import SSLContext
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 512
"""Maximum number of open connections; fewer if the process may not open twice as many files."""
REQUEST_TIMEOUT_SECONDS = 5.0
"""Time for the TLS handshake, and for a request from its first byte to its last."""
WRITE_TIMEOUT_SECONDS = 10.0
"""Time after which the connection of a peer is closed that reads nothing of a response."""
TLS_SHUTDOWN_TIMEOUT_SECONDS = 1.0

_RETRY_SECONDS = 0.02


class TimedH11Protocol(H11Protocol):
    """HTTP/1.1 that closes the connection of a peer that sends or reads too slowly.

    `on_close` is called once the connection is closed.
    """

    request_timeout = REQUEST_TIMEOUT_SECONDS
    write_timeout = WRITE_TIMEOUT_SECONDS
    on_close: Callable[[], object] | None = None
    _request_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it is the peer's turn: to send (the rest of) a request, or to read."""
        return self._is_receiving or self._write_timer is not None

    @property
    def _is_receiving(self) -> bool:
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Limit the time of the first request."""
        super().connection_made(transport)
        self._start_request_timer()

    def data_received(self, data: bytes) -> None:
        """Limit the time of a request that is incomplete; no longer, once it is complete."""
        super().data_received(data)
        if not self._is_receiving:
            self._stop_request_timer()
        elif self._request_timer is None:
            self._start_request_timer()

    def pause_writing(self) -> None:
        """Limit the time for which the peer reads nothing."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.write_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """The peer reads."""
        super().resume_writing()
        self._stop_write_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_request_timer()
        self._stop_write_timer()
        super().connection_lost(exc)
        if self.on_close is not None:
            self.on_close()

    def _start_request_timer(self) -> None:
        self._request_timer = self.loop.call_later(self.request_timeout, self.transport.abort)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


class _Connection:
    """One accepted connection of `peer`; `protocol` has no transport during the TLS handshake."""

    def __init__(self, accepted: socket.socket, peer: str, protocol: TimedH11Protocol) -> None:
        self.socket, self.peer, self.protocol = accepted, peer, protocol
        self.is_closing = False

    def close(self) -> None:
        """Close it, whatever its state."""
        self.is_closing = True
        if self.protocol.transport is not None:
            self.protocol.transport.abort()
            return
        try:
            # The handshake finds the end of the stream, and fails.
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("The peer has closed the connection")


class ConnectionAcceptor:
    """Accepts connections of `listener` in the running event loop until `close`.

    `make_protocol` returns the protocol of a new connection, and `tls_context` its TLS context, or
    None for plain HTTP. Has the methods of an asyncio server that uvicorn calls.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], TimedH11Protocol],
        tls_context: Callable[[], SSLContext | None],
    ) -> None:
        self._listener, self._make_protocol = listener, make_protocol
        self._tls_context = tls_context
        self._loop = asyncio.get_running_loop()
        open_files, _ = getrlimit(RLIMIT_NOFILE)
        self._max_connections = min(MAX_CONNECTIONS, max(open_files // 2, 1))
        # In the order in which they were accepted, each with the task of its handshake.
        self._connections: dict[_Connection, asyncio.Task[None]] = {}
        listener.setblocking(False)
        self._accepting = self._loop.create_task(self._accept())

    def close(self) -> None:
        """Accept no further connections, and end all handshakes."""
        for task in (self._accepting, *self._connections.values()):
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until `close` is done."""
        await asyncio.gather(self._accepting, return_exceptions=True)

    async def abort(self) -> None:
        """Close what is still open: a stream may outlast the time that the server waits for it."""
        for connection in list(self._connections):
            connection.close()
            connection.socket.close()
        # The event loop ends their transports in its next turn.
        await asyncio.sleep(0)

    async def _accept(self) -> None:
        while True:
            await self._make_room()
            try:
                accepted, address = await self._loop.sock_accept(self._listener)
            except OSError as error:
                # Too many open files, or the peer is gone already.
                log.warning("A connection cannot be accepted (%s)", error.strerror)
                self._close_one()
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            connection = _Connection(accepted, address[0], self._make_protocol())
            connection.protocol.on_close = partial(self._connections.pop, connection, None)
            self._connections[connection] = self._loop.create_task(self._open(connection))
            # Those that are accepted make progress, however fast further ones arrive.
            await asyncio.sleep(0)

    async def _open(self, connection: _Connection) -> None:
        """Connect the protocol, after the TLS handshake if there is one."""
        context, limits = self._tls_context(), {}
        if context is not None:
            limits = {
                "ssl_handshake_timeout": connection.protocol.request_timeout,
                "ssl_shutdown_timeout": TLS_SHUTDOWN_TIMEOUT_SECONDS,
            }
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection.protocol, connection.socket, ssl=context, **limits
            )
        except OSError as error:
            log.debug("A TLS handshake failed (%s)", type(error).__name__)
            self._connections.pop(connection, None)

    async def _make_room(self) -> None:
        while len(self._connections) >= self._max_connections:  # noqa: ASYNC110 - and closes some
            # All may be being answered, which does not take long.
            await asyncio.sleep(0 if self._close_one() else _RETRY_SECONDS)

    def _close_one(self) -> bool:
        """Close the longest waiting connection of the peer that has most of them.

        False if there is none, and none that is being closed already.
        """
        if any(each.is_closing for each in self._connections):
            return True
        waiting = [each for each in self._connections if each.protocol.is_waiting]
        if waiting:
            counts = Counter(each.peer for each in waiting)
            peer = max(counts, key=counts.__getitem__)
            next(each for each in waiting if each.peer == peer).close()
        return bool(waiting)
