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

CHUNK_BYTES = 16 << 10
"""Bytes: ten steps of some 150 values."""
CHUNK_VERSION = 1
STILL_RUNNING = 0
"""How a sender ended that did not: the first of `OUTCOMES`."""
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<QIIB")
_LENGTH = struct.Struct("<I")
_BODY_OFFSET = _CRC.size + _HEADER.size
MAX_PAYLOAD_BYTES = CHUNK_BYTES - _BODY_OFFSET


@dataclass(frozen=True, slots=True)
class Chunk:
    """What arrived. `ending` is a place in `OUTCOMES`."""

    number: int
    payloads: list[bytes]
    lost_records: int
    outcome_index: int


def encoded_size(payload: bytes) -> int:
    """Bytes of `ROOM` that a payload takes."""
    return _LENGTH.size + len(payload)


def encode_into(
    buffer: bytearray,
    number: int,
    payloads: Iterable[bytes],
    lost_records: int,
    outcome_index: int = STILL_RUNNING,
) -> None:
    """Fill the memory; the caller sees to it that the payloads fit into `ROOM`."""
    at = _BODY_OFFSET
    for payload in payloads:
        start = at + _LENGTH.size
        _LENGTH.pack_into(buffer, at, len(payload))
        at = start + len(payload)
        buffer[start:at] = payload
    _HEADER.pack_into(
        buffer, _CRC.size, number, at - _BODY_OFFSET, min(lost_records, 0xFFFFFFFF), outcome_index
    )
    _CRC.pack_into(buffer, 0, _checksum(buffer, at))


def decode(buffer: bytearray) -> Chunk | None:
    """The chunk in the memory; None where there is none, or one that is not there as a whole."""
    number, used, lost, ending = _HEADER.unpack_from(buffer, _CRC.size)
    end = _BODY_OFFSET + used
    if used > MAX_PAYLOAD_BYTES or _CRC.unpack_from(buffer)[0] != _checksum(buffer, end):
        return None
    return Chunk(number, [*_split_payloads(bytes(buffer[_BODY_OFFSET:end]))], lost, ending)


def _split_payloads(body: bytes) -> Iterator[bytes]:
    at = 0
    while at + _LENGTH.size <= len(body):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(body, at)[0]
        yield body[start:at]


def _checksum(memory: bytearray, end: int) -> int:
    with memoryview(memory) as view, view[_CRC.size : end] as used:
        return crc32(used)
