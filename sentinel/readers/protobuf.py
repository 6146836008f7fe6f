"""Decodes the fields of protobuf messages without a schema or generated code."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES = 10


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and content of each field: an int for a varint, else its bytes.

    Raises ValueError if the message is truncated or invalid.
    """
    offset, end = 0, len(message)
    while offset < end:
        key, offset = decode_varint(message, offset)
        number, wire_type = key >> 3, key & 7
        if wire_type == VARINT:
            value, offset = decode_varint(message, offset)
            yield number, value
            continue
        if wire_type == LENGTH_DELIMITED:
            size, offset = decode_varint(message, offset)
        elif wire_type in (FIXED64, FIXED32):
            size = 8 if wire_type == FIXED64 else 4
        else:
            raise ValueError(f"unknown wire type {wire_type}")
        if offset + size > end:
            raise ValueError("truncated field")
        yield number, message[offset : offset + size]
        offset += size


def decode_varint(message: bytes, offset: int) -> tuple[int, int]:
    """The unsigned number at `offset`, and the offset after it. Raises ValueError."""
    value = 0
    for shift, byte in enumerate(message[offset : offset + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, offset + shift + 1
    raise ValueError("unterminated varint")


def to_int64(value: int) -> int:
    """A varint as a signed 64-bit number."""
    return value - 2**64 if value >= 2**63 else value


def decode_text(content: int | bytes) -> str:
    """The content of a field that is a string. Raises ValueError."""
    if isinstance(content, int):
        raise ValueError("a varint instead of a string")  # noqa: TRY004 - one error for bad data
    return content.decode()


def subfields(content: int | bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a field that is itself a message. Raises ValueError."""
    if isinstance(content, int):
        raise ValueError("a varint instead of a message")  # noqa: TRY004 - one error for bad data
    return fields(content)
