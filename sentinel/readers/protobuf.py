"""Protobuf: the fields of one message, taken apart by hand; no schema, no generated code."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5
MAX_VARINT_BYTES = 10


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and content of each field: an int of a varint, else its bytes.

    Raises ValueError where the message is cut off or is none.
    """
    at, end = 0, len(message)
    while at < end:
        key, at = decode_varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = decode_varint(message, at)
            yield number, value
            continue
        if kind == LENGTH_DELIMITED:
            size, at = decode_varint(message, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if at + size > end:
            raise ValueError("a field that is cut off")
        yield number, message[at : at + size]
        at += size


def decode_varint(message: bytes, offset: int) -> tuple[int, int]:
    """The unsigned number that begins there, and where it ends. Raises ValueError."""
    value = 0
    for shift, byte in enumerate(message[offset : offset + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, offset + shift + 1
    raise ValueError("a number without end")


def to_int64(value: int) -> int:
    """A varint read as the int64 that was written."""
    return value - 2**64 if value >= 2**63 else value


def decode_text(content: int | bytes) -> str:
    """The content of a field that is a string. Raises ValueError."""
    if isinstance(content, int):
        raise ValueError("a number where a text belongs")  # noqa: TRY004 - one error for bad bytes
    return content.decode()


def subfields(content: int | bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a field that is itself a message. Raises ValueError."""
    if isinstance(content, int):
        raise ValueError("a number where a message belongs")  # noqa: TRY004 - as above
    return fields(content)
