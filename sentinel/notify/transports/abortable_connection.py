"""Connections of one delivery, checked when they open and closed when its deadline expires.

The timeout of `requests` bounds each single read, not the whole exchange: a server that sends one
byte per second keeps a request alive forever. Here another thread can shut the sockets down.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from sentinel.config.url_policy import is_loopback, peer_refusal
from sentinel.model.delivery import Response
from sentinel.notify.transports.errors import (
    AddressRefusedError,
    DeadlineExceededError,
    PostponedError,
    ThreadLimitError,
)

THREAD_NAME = "sentinel-send"
"""Name of the thread of an exchange; HTTP libraries must log nothing there."""


CONNECT_SHARE = 0.25
"""Share of the deadline for the connection to one address of a host, which may drop packets."""

_READ_TIMEOUT_SECONDS = 120.0
"""Timeout of one read, longer than any deadline."""


class AbortableConnections:
    """The open sockets of one request.

    `is_wanted` is asked when the receiver is reached, before anything is sent to it.
    """

    def __init__(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        self._is_wanted = is_wanted
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._is_aborted = False
        self.is_opened = False
        """Whether any connection was opened, so that the receiver may have got something."""

    def add(self, connection: socket.socket) -> None:
        """Register a new connection.

        Raises DeadlineExceededError after `abort`, PostponedError if it is not wanted.
        """
        if not self._is_wanted():
            raise PostponedError
        with self._lock:
            if self._is_aborted:
                raise DeadlineExceededError
            self.is_opened = True
            # A duplicate, because wrapping a socket in TLS detaches the original descriptor.
            self._sockets.append(connection.dup())

    def abort(self) -> None:
        """Shut down every connection, and refuse new ones; callable from any thread."""
        with self._lock:
            self._is_aborted = True
            for connection in self._sockets:
                _shut_down(connection)

    def close(self) -> None:
        """Close the sockets at the end of the request."""
        with self._lock:
            for connection in self._sockets:
                connection.close()
            self._sockets.clear()


def exchange_within(
    deadline: float,
    exchange: Callable[[AbortableConnections], Response],
    is_wanted: Callable[[], bool],
) -> Response:
    """What `exchange` returns within `deadline` seconds; an error is reported by its class name."""
    responses: queue.SimpleQueue[Response] = queue.SimpleQueue()
    connections = AbortableConnections(is_wanted)
    # A separate thread, because a blocked name resolution cannot be interrupted.
    attempt = threading.Thread(
        target=lambda: responses.put(_try_exchange(exchange, connections)),
        name=THREAD_NAME,
        daemon=True,
    )
    try:
        attempt.start()
    except RuntimeError:
        # No more threads are permitted, as in a container with a limit of processes; it may pass.
        return Response(error=ThreadLimitError.__name__, is_sent=False)
    try:
        return responses.get(timeout=deadline)
    except queue.Empty:
        # A later outcome of the attempt is ignored: a truncated response can look complete.
        connections.abort()
        return Response(error=DeadlineExceededError.__name__, is_sent=connections.is_opened)


def check_peer_address(connection: socket.socket, host: str, *, is_plaintext: bool) -> None:
    """Raise AddressRefusedError if the connection to `host` leads where nothing may be sent."""
    peer = str(connection.getpeername()[0])
    if peer_refusal(peer) or (is_plaintext and is_loopback(host) and not is_loopback(peer)):
        raise AddressRefusedError


class AbortableAdapter(HTTPAdapter):
    """Transport adapter of `requests` that registers every connection, proxied or direct."""

    def __init__(self, connections: AbortableConnections) -> None:
        self._pool_classes = _make_pool_classes(connections)
        super().__init__(max_retries=0)

    def init_poolmanager(self, *args: Any, **settings: Any) -> None:
        super().init_poolmanager(*args, **settings)
        self.poolmanager.pool_classes_by_scheme = self._pool_classes

    def proxy_manager_for(self, *args: Any, **settings: Any) -> Any:
        manager = super().proxy_manager_for(*args, **settings)
        manager.pool_classes_by_scheme = self._pool_classes
        return manager


def _make_pool_classes(connections: AbortableConnections) -> Mapping[str, type]:
    def open_connection(self: Any) -> socket.socket:
        opened = cast("socket.socket", super(type(self), self)._new_conn())
        is_plaintext = not isinstance(self, HTTPSConnection)
        try:
            check_peer_address(opened, self.host, is_plaintext=is_plaintext)
            connections.add(opened)
        except OSError:
            opened.close()
            raise
        # The handshake of TLS has more time than the connection.
        opened.settimeout(_READ_TIMEOUT_SECONDS)
        return opened

    # `debuglevel` makes the library print whole requests, including secrets.
    attributes = {"_new_conn": open_connection, "debuglevel": 0}
    http = type("AbortableHTTPConnection", (HTTPConnection,), attributes)
    https = type("AbortableHTTPSConnection", (HTTPSConnection,), attributes)
    return {
        "http": type("AbortableHTTPPool", (HTTPConnectionPool,), {"ConnectionCls": http}),
        "https": type("AbortableHTTPSPool", (HTTPSConnectionPool,), {"ConnectionCls": https}),
    }


def _try_exchange(
    exchange: Callable[[AbortableConnections], Response], connections: AbortableConnections
) -> Response:
    try:
        return exchange(connections)
    except Exception as error:
        return Response(error=_root_cause_name(error), is_sent=connections.is_opened)
    finally:
        connections.close()


def _root_cause_name(error: BaseException) -> str:
    inner = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return _root_cause_name(inner) if inner else type(error).__name__


def _shut_down(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
