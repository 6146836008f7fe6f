"""Places: at which addresses the agents of one job look for their head, and where it listens."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from sentinel.wire.meeting import Meeting

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

    Raises ValueError for a port that is no number.

    >>> address(Meeting("gpu-a", "29500", "29500")).host, address(Meeting(), "h:9").ports
    ('gpu-a', (9,))
    """
    host, colon, port = head.rpartition(":") if head.count(":") == 1 else (head, "", "")
    if colon:
        return Address(host, (int(port),))
    first = FIRST_PORT + crc32(meeting.job.encode()) % (PORTS - TRIES)
    return Address(head.strip("[]") or meeting.host, tuple(range(first, first + TRIES)))


def slot_keys(slot: int) -> tuple[str, str, str]:
    """Where a node says hello, leaves its parcels, and finds its answers."""
    return f"sentinel/hello/{slot}", f"sentinel/box/{slot}", f"sentinel/ack/{slot}"
