"""Places: at which addresses the agents of one job look for their head, and where it listens."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from sentinel.transport.rendezvous import Rendezvous

FIRST_PORT, PORT_COUNT = 14000, 4000
"""Ports are chosen from these by the job: below those that the kernel gives out by itself."""
PORT_TRIES = 8
"""Ports in a row, since another job, or anybody, may have the first."""

HEAD_INFO_KEY, SLOT_COUNTER_KEY = "sentinel/card", "sentinel/slots"


@dataclass(frozen=True, slots=True)
class HeadEndpoint:
    """Where a head may be: its host, and the ports at which it may listen there."""

    host: str
    ports: tuple[int, ...]


def head_endpoint(rendezvous: Rendezvous, configured_head: str = "") -> HeadEndpoint:
    """The place by what the launcher told, and by what a person set as `head`: host, or host:port.

    An address with colons of its own stands in brackets before a port. Raises ValueError for a
    port that is none.

    >>> address(Meeting("gpu-a", "29500", "29500")).host, address(Meeting(), "h:9").ports
    ('gpu-a', (9,))
    """
    host, port = _split_host_port(configured_head)
    if port:
        return HeadEndpoint(host or rendezvous.host, (int(port),))
    # What a launcher tells may be no text at all.
    first = FIRST_PORT + crc32(rendezvous.job_id.encode(errors="surrogatepass")) % (
        PORT_COUNT - PORT_TRIES
    )
    return HeadEndpoint(host or rendezvous.host, tuple(range(first, first + PORT_TRIES)))


def format_address(host: str, port: int) -> str:
    """An address as a person would set it, and `address` reads it.

    >>> spelled("gpu-a", 9), spelled("fe80::1", 9)
    ('gpu-a:9', '[fe80::1]:9')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _split_host_port(configured_head: str) -> tuple[str, str]:
    """Host and port of what a person set; no port where none was."""
    bracketed, closed, rest = configured_head.removeprefix("[").partition("]")
    if configured_head.startswith("[") and closed:
        host, port = bracketed, rest.removeprefix(":")
    elif configured_head.count(":") == 1:
        host, _, port = configured_head.partition(":")
    else:
        host, port = configured_head, ""
    if port and not (port.isdecimal() and 0 < int(port) < 1 << 16):
        message = (
            f"[cluster] head is {configured_head!r}: behind the colon belongs a port, 1 to 65535."
        )
        raise ValueError(message)
    return host, port


def slot_keys(slot: int) -> tuple[str, str, str]:
    """Where a node says hello, leaves its parcels, and finds its answers."""
    return f"sentinel/hello/{slot}", f"sentinel/box/{slot}", f"sentinel/ack/{slot}"
