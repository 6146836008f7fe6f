"""W&B file: the records of a `.wandb` file, found among its blocks of 32 KiB.

It is a log as LevelDB writes it: a record is one piece, or several, and no piece crosses a block. A
piece is its checksum, its length, its kind and its bytes. What is cut off at the end may still be
being written.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from sentinel.readers.log_reader import LogReader

FILE_MAGIC = b":W&B"
FILE_HEADER_BYTES = 7
BLOCK_BYTES = 2**15
FRAGMENT_HEADER = Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
MAX_RECORD_BYTES = 2**24
"""Bytes of a record; a longer one holds no row."""

Fragment = tuple[int, bytes | None, int]
"""Its kind, its bytes if they are sound, and where it ends."""


def read_payloads(path: Path, reader: LogReader) -> Iterator[bytes | None]:
    """Records in order; None wherever a live file has no more for now.

    `reading.mark` is where the record given ends, in bytes. A damaged piece costs its record, or,
    where its length makes no sense, the rest of its block. Raises OSError.
    """
    parts: list[bytes] = []
    for piece in _read_fragments(path, reader):
        if piece is None:
            yield None
            continue
        kind, content, end = piece
        if kind in (FULL, FIRST) or content is None:
            parts = []
        elif not parts:
            # The rest of a record whose beginning is lost.
            continue
        if content is None or sum(map(len, parts)) > MAX_RECORD_BYTES:
            reader.skipped += 1
            parts = []
            continue
        parts.append(content)
        if kind in (FULL, LAST):
            reader.position = end
            yield b"".join(parts)
            parts = []


def _read_fragments(path: Path, reading: LogReader) -> Iterator[Fragment | None]:
    at = FILE_HEADER_BYTES
    with path.open("rb") as file:
        while True:
            room = BLOCK_BYTES - at % BLOCK_BYTES
            if room < FRAGMENT_HEADER.size:
                at += room
                continue
            file.seek(at)
            data = file.read(room)
            over, kind, content = _parse_fragment(data)
            if over:
                at += over
                yield kind, content, at
            elif len(data) == room and any(data):
                # The block is whole, and this is no piece.
                at += room
                yield 0, None, at
            elif reading.is_live:
                yield None
            else:
                return


def _parse_fragment(data: bytes) -> tuple[int, int, bytes | None]:
    """How long the first piece is, its kind, and its bytes if they are sound; 0 if it is none."""
    if len(data) < FRAGMENT_HEADER.size:
        return 0, 0, None
    told, length, kind = FRAGMENT_HEADER.unpack_from(data)
    over = FRAGMENT_HEADER.size + length
    if over > len(data) or not FULL <= kind <= LAST:
        return 0, 0, None
    content = data[FRAGMENT_HEADER.size : over]
    return over, kind, content if zlib.crc32(data[6:over]) == told else None
