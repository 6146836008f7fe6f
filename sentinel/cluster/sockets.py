"""Sockets of the cluster: where the head listens, and how calls that block forever are aborted."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sentinel.config.url_policy import is_loopback

_ESTABLISHED = "01"
"""TCP_ESTABLISHED in a table of proc_pid_net(5)."""


class NoFreePortError(OSError):
    """None of the ports is free."""


def local_address(host: str) -> str:
    """The address of an interface of this node that other nodes reach as `host`; "" if unknown.

    A name that this node resolves to loopback, as Debian does for its own, is no such address.
    """
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM) if host else []
    except (OSError, UnicodeError):
        return ""
    for family, _, _, _, sockaddr in found:
        with suppress(OSError), socket.socket(family) as probe:
            address, _ = socket.getnameinfo(sockaddr, socket.NI_NUMERICHOST)
            # The kernel binds to addresses of this node only.
            probe.bind(sockaddr)
            if is_loopback(host) or not is_loopback(address):
                return address
    return ""


def bind_first_free_port(ports: Sequence[int], address: str = "") -> socket.socket:
    """A socket bound to the first free port of `ports` at `address`; "" is all interfaces.

    Raises NoFreePortError.
    """
    for port in ports:
        with suppress(OSError):
            if address:
                family, _, _, _, sockaddr = socket.getaddrinfo(address, port)[0]
                return socket.create_server(sockaddr, family=family)
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
            # Only of a socket a duplicate is made and closed: closing one of a database would
            # release the locks that this process holds on it, and other writers would damage it.
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            # A duplicate: another thread may close the original at any time.
            descriptor = os.dup(int(name))
            try:
                _shutdown_if_peer_port(descriptor, port)
            finally:
                os.close(descriptor)


def count_accepted_connections(port: int) -> int:
    """Open connections of peers to our `port`, in the network namespace of this process."""
    return sum(_count_established(Path("/proc/self/net", name), port) for name in ("tcp", "tcp6"))


def _count_established(table: Path, port: int) -> int:
    """Established connections with that local port in a table of proc_pid_net(5)."""
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return 0
    return sum(
        row[3] == _ESTABLISHED and int(row[1].rpartition(":")[2], 16) == port for row in rows
    )


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
