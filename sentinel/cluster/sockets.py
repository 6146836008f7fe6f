"""Sockets of the cluster: where the head listens, and who is connected."""

from __future__ import annotations

import socket
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
