"""Places: at which addresses the agents of one job look for their head, and where it listens."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from sentinel.transport.rendezvous import Meeting

FIRST_PORT, PORTS = 14000, 4000
"""Ports are chosen from these by the job: below those that the kernel gives out by itself."""
TRIES = 8
"""Ports in a row, since another job, or anybody, may have the first."""

CARD, SLOTS = "sentinel/card", "sentinel/slots"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a head may be: its host, and the ports at which it may listen there."""

    host: str
    ports: tuple[int, ...]


def address(meeting: Meeting, head: str = "") -> Address:
    """The place by what the launcher told, and by what a person set as `head`: host, or host:port.

    An address with colons of its own stands in brackets before a port. Raises ValueError for a
    port that is none.

    >>> address(Meeting("gpu-a", "29500", "29500")).host, address(Meeting(), "h:9").ports
    ('gpu-a', (9,))
    """
    host, port = _parted(head)
    if port:
        return Address(host or meeting.host, (int(port),))
    # What a launcher tells may be no text at all.
    first = FIRST_PORT + crc32(meeting.job.encode(errors="surrogatepass")) % (PORTS - TRIES)
    return Address(host or meeting.host, tuple(range(first, first + TRIES)))


def spelled(host: str, port: int) -> str:
    """An address as a person would set it, and `address` reads it.

    >>> spelled("gpu-a", 9), spelled("fe80::1", 9)
    ('gpu-a:9', '[fe80::1]:9')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _parted(head: str) -> tuple[str, str]:
    """Host and port of what a person set; no port where none was."""
    bracketed, closed, rest = head.removeprefix("[").partition("]")
    if head.startswith("[") and closed:
        host, port = bracketed, rest.removeprefix(":")
    elif head.count(":") == 1:
        host, _, port = head.partition(":")
    else:
        host, port = head, ""
    if port and not (port.isdecimal() and 0 < int(port) < 1 << 16):
        message = f"[cluster] head is {head!r}: behind the colon belongs a port, 1 to 65535."
        raise ValueError(message)
    return host, port


def slot_keys(slot: int) -> tuple[str, str, str]:
    """Where a node says hello, leaves its parcels, and finds its answers."""
    return f"sentinel/hello/{slot}", f"sentinel/box/{slot}", f"sentinel/ack/{slot}"
