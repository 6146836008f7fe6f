"""Chunk: what one rank hands to rank 0 at a time: frames of its own ring, in a fixed shape.

A chunk is `SIZE` bytes, seen by torch as a vector of float64; nothing is ever computed on it, so
every bit arrives as it was sent. It holds its checksum, its number, how many bytes are used, how
many records the sender had no room for, and how the sender ended; then payloads as they stand in
the ring, each behind its length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from zlib import crc32

SIZE = 16 << 10
"""Bytes: ten steps of some 150 values."""
VERSION = 1
GOES_ON = 0
"""How a sender ended that did not: the first of `OUTCOMES`."""
_CRC = struct.Struct("<I")
_HEAD = struct.Struct("<QIIB")
_LENGTH = struct.Struct("<I")
_BODY = _CRC.size + _HEAD.size
ROOM = SIZE - _BODY


@dataclass(frozen=True, slots=True)
class Chunk:
    """What arrived. `ending` is a place in `OUTCOMES`."""

    number: int
    payloads: list[bytes]
    lost: int
    ending: int


def taken(payload: bytes) -> int:
    """Bytes of `ROOM` that a payload takes."""
    return _LENGTH.size + len(payload)


def write(
    memory: bytearray, number: int, payloads: Iterable[bytes], lost: int, ending: int = GOES_ON
) -> None:
    """Fill the memory; the caller sees to it that the payloads fit into `ROOM`."""
    at = _BODY
    for payload in payloads:
        start = at + _LENGTH.size
        _LENGTH.pack_into(memory, at, len(payload))
        at = start + len(payload)
        memory[start:at] = payload
    _HEAD.pack_into(memory, _CRC.size, number, at - _BODY, min(lost, 0xFFFFFFFF), ending)
    _CRC.pack_into(memory, 0, _checksum(memory, at))


def read(memory: bytearray) -> Chunk | None:
    """The chunk in the memory; None where there is none, or one that is not there as a whole."""
    number, used, lost, ending = _HEAD.unpack_from(memory, _CRC.size)
    end = _BODY + used
    if used > ROOM or _CRC.unpack_from(memory)[0] != _checksum(memory, end):
        return None
    return Chunk(number, [*_payloads(bytes(memory[_BODY:end]))], lost, ending)


def _payloads(body: bytes) -> Iterator[bytes]:
    at = 0
    while at + _LENGTH.size <= len(body):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(body, at)[0]
        yield body[start:at]


def _checksum(memory: bytearray, end: int) -> int:
    with memoryview(memory) as view, view[_CRC.size : end] as used:
        return crc32(used)
