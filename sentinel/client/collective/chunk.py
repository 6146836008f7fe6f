"""The message of fixed size that a rank sends to rank 0: payloads of its ring.

A chunk has `CHUNK_BYTES` bytes. Torch sends it as a vector of float64 without computing on it, so
every bit is preserved. It holds a checksum, its number, the bytes used, the number of records lost
by the sender, and the outcome of the sender; then the payloads, each after its length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from zlib import crc32

CHUNK_BYTES = 16 << 10
"""Enough for ten steps of about 150 values."""
CHUNK_VERSION = 1
STILL_RUNNING = 0
"""Outcome of a sender that has not ended: index of "running" in `OUTCOMES`."""
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<QIIB")
_LENGTH = struct.Struct("<I")
_BODY_OFFSET = _CRC.size + _HEADER.size
MAX_PAYLOAD_BYTES = CHUNK_BYTES - _BODY_OFFSET


@dataclass(frozen=True, slots=True)
class Chunk:
    """A decoded chunk. `outcome_index` is an index of `OUTCOMES`."""

    number: int
    payloads: list[bytes]
    lost_records: int
    outcome_index: int


def encoded_size(payload: bytes) -> int:
    """Bytes of `MAX_PAYLOAD_BYTES` that a payload takes."""
    return _LENGTH.size + len(payload)


def encode_into(
    buffer: bytearray,
    number: int,
    payloads: Iterable[bytes],
    lost_records: int,
    outcome_index: int = STILL_RUNNING,
) -> None:
    """Encode a chunk; the caller ensures that the payloads fit into `MAX_PAYLOAD_BYTES`."""
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
    """The chunk in the buffer; None if it is missing, incomplete or damaged."""
    number, used, lost, outcome_index = _HEADER.unpack_from(buffer, _CRC.size)
    end = _BODY_OFFSET + used
    if used > MAX_PAYLOAD_BYTES or _CRC.unpack_from(buffer)[0] != _checksum(buffer, end):
        return None
    return Chunk(number, [*_split_payloads(bytes(buffer[_BODY_OFFSET:end]))], lost, outcome_index)


def _split_payloads(body: bytes) -> Iterator[bytes]:
    at = 0
    while at + _LENGTH.size <= len(body):
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(body, at)[0]
        yield body[start:at]


def _checksum(memory: bytearray, end: int) -> int:
    with memoryview(memory) as view, view[_CRC.size : end] as used:
        return crc32(used)
