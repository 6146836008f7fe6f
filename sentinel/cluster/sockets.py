"""Sockets of the cluster: finds a free port for the head, and aborts calls that block forever."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress


class NoFreePortError(OSError):
    """None of the ports is free."""


def bind_first_free_port(ports: Sequence[int]) -> socket.socket:
    """A socket bound to the first free port of `ports`, on all networks of this node.

    Raises NoFreePortError.
    """
    for port in ports:
        with suppress(OSError):
            if socket.has_dualstack_ipv6():
                return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
            return socket.create_server(("", port))
    raise NoFreePortError(
        f"None of the ports {ports[0]} to {ports[-1]} is free: set [cluster] head."
    )


def shutdown_connections(port: int) -> None:
    """Shut down each connection of this process to a peer at `port`; blocked calls raise.

    A call of the store has no timeout of its own while the peer keeps its socket open.
    """
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - only the names are needed
        with suppress(OSError):
            # A duplicate: another thread may close the original at any time.
            descriptor = os.dup(int(name))
            try:
                _shutdown_if_peer_port(descriptor, port)
            finally:
                os.close(descriptor)


def count_accepted_connections(port: int) -> int:
    """Connections of this process that peers opened to its `port`."""
    count = 0
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - only the names are needed
        with suppress(OSError):
            # A duplicate: another thread may close the original at any time.
            descriptor = os.dup(int(name))
            try:
                count += _is_accepted_at(descriptor, port)
            finally:
                os.close(descriptor)
    return count


def _is_accepted_at(descriptor: int, port: int) -> bool:
    """Whether it is a connection to our `port`. Raises OSError if it has no peer."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return False
    connection = socket.socket(fileno=descriptor)
    try:
        is_own_port = connection.family != socket.AF_UNIX and connection.getsockname()[1] == port
        return is_own_port and bool(connection.getpeername())
    finally:
        connection.detach()


def _shutdown_if_peer_port(descriptor: int, port: int) -> None:
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return
    connection = socket.socket(fileno=descriptor)
    try:
        # The address of a Unix socket is a string.
        if connection.family != socket.AF_UNIX and connection.getpeername()[1] == port:
            connection.shutdown(socket.SHUT_RDWR)
    finally:
        connection.detach()
