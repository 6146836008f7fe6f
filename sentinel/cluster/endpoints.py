"""Addresses at which the agents of a job look for their head, and at which it listens."""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from sentinel.transport.rendezvous import Rendezvous

FIRST_PORT, PORT_COUNT = 14000, 4000
"""The job id selects ports from this range, which is below the ephemeral ports of the kernel."""
PORT_TRIES = 8
"""Consecutive ports to try, since another program may use the first."""


class HeadEndpoint(NamedTuple):
    """The host of the head, and the ports at which it may listen."""

    host: str
    ports: tuple[int, ...]


def head_endpoint(rendezvous: Rendezvous, configured_head: str = "") -> HeadEndpoint:
    """The endpoint from the rendezvous of the launcher and the setting `head`: host, or host:port.

    An IPv6 address before a port is in brackets. Raises ValueError for an invalid port.

    >>> head_endpoint(Rendezvous("gpu-a", "29500", "29500")).host
    'gpu-a'
    >>> head_endpoint(Rendezvous(), "h:9").ports
    (9,)
    """
    host, port = _split_host_port(configured_head)
    if port:
        return HeadEndpoint(host or rendezvous.host, (int(port),))
    # A job id from the environment may not be valid Unicode.
    first = FIRST_PORT + crc32(rendezvous.job_id.encode(errors="surrogatepass")) % (
        PORT_COUNT - PORT_TRIES
    )
    return HeadEndpoint(host or rendezvous.host, tuple(range(first, first + PORT_TRIES)))


def format_address(host: str, port: int) -> str:
    """The address in the format of the setting `head`.

    >>> format_address("gpu-a", 9), format_address("fe80::1", 9)
    ('gpu-a:9', '[fe80::1]:9')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _split_host_port(configured_head: str) -> tuple[str, str]:
    """Host and port of the setting; the port is "" where none is set."""
    bracketed, closed, rest = configured_head.removeprefix("[").partition("]")
    if configured_head.startswith("[") and closed:
        host, port = bracketed, rest.removeprefix(":")
    elif configured_head.count(":") == 1:
        host, _, port = configured_head.partition(":")
    else:
        host, port = configured_head, ""
    if port and not (port.isdecimal() and 0 < int(port) < 1 << 16):
        message = f"[cluster] head is {configured_head!r}: the port must be a number, 1 to 65535."
        raise ValueError(message)
    return host, port
