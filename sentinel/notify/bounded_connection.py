"""Leash: the connections of one request, checked when they are made and cut when time is up.

The timeout of `requests` bounds one silence of the receiver, not the whole exchange: one byte per
second keeps it alive for ever. So the sockets are held here, where another thread can cut them.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from typing import Any, cast

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from sentinel.config.url_policy import is_loopback, peer_refusal


class AddressRefusedError(OSError):
    """The receiver's name led to an address that no page may be sent to."""


class DeadlineExceededError(OSError):
    """The connection came into being after its time was up."""


class AbortableConnections:
    """Holds sockets for as long as one request lasts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._is_aborted = False

    def add(self, connection: socket.socket) -> None:
        """Keep hold of a fresh connection. Raises CutError once `cut` was called."""
        with self._lock:
            if self._is_aborted:
                raise DeadlineExceededError
            # A duplicate, because wrapping a socket in TLS leaves the original without its number.
            self._sockets.append(connection.dup())

    def abort(self) -> None:
        """End every connection, and every one still to come, from any thread."""
        with self._lock:
            self._is_aborted = True
            for held in self._sockets:
                _shut_down(held)

    def close(self) -> None:
        """The request is over: let go of its sockets."""
        with self._lock:
            for held in self._sockets:
                held.close()
            self._sockets.clear()


class AbortableAdapter(HTTPAdapter):
    """Transport of `requests` whose every connection, by proxy or not, is on the leash."""

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
    def leashed(self: Any) -> socket.socket:
        made = cast("socket.socket", super(type(self), self)._new_conn())
        try:
            _check_peer_address(made, self.host, is_plaintext=not isinstance(self, HTTPSConnection))
            connections.add(made)
        except OSError:
            made.close()
            raise
        return made

    # `debuglevel` is the library's switch for printing whole requests, secrets included.
    ours = {"_new_conn": leashed, "debuglevel": 0}
    http = type("LeashedHttp", (HTTPConnection,), ours)
    https = type("LeashedHttps", (HTTPSConnection,), ours)
    return {
        "http": type("HttpPool", (HTTPConnectionPool,), {"ConnectionCls": http}),
        "https": type("HttpsPool", (HTTPSConnectionPool,), {"ConnectionCls": https}),
    }


def _check_peer_address(connection: socket.socket, host: str, *, is_plaintext: bool) -> None:
    peer = str(connection.getpeername()[0])
    if peer_refusal(peer) or (is_plaintext and is_loopback(host) and not is_loopback(peer)):
        raise AddressRefusedError


def _shut_down(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
