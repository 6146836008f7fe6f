"""Event files for tests of the TensorBoard reader, written byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path

from sentinel.readers.crc32c import masked_crc32c


def framed(payload: bytes) -> bytes:
    """One record in the format of the file."""
    length = struct.pack("<Q", len(payload))
    sums = (struct.pack("<I", masked_crc32c(part)) for part in (length, payload))
    return length + next(sums) + payload + next(sums)


def event(step: int, tag: str, value: float, time: float = 1.7e9) -> bytes:
    """Payload of an event with one number, as torch writes it."""
    scalar = field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
    return b"\x09" + struct.pack("<d", time) + b"\x10" + varint(step) + field(5, field(1, scalar))


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


VERSION = framed(b"\x09" + struct.pack("<d", 1.7e9) + field(3, b"brain.Event:2"))


def event_file(folder: Path, *payloads: bytes, name: str = "events.out.tfevents.1.host") -> Path:
    """Creates a file with these events in that directory."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(VERSION + b"".join(map(framed, payloads)))
    return path
