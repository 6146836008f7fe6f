"""Records of a `.wandb` file, which consists of blocks of 32 KiB.

The format is LevelDB's log: a record is one fragment or several, and no fragment crosses a block.
A fragment is a checksum, a length, a type and its bytes. A fragment cut off at the end of the file
may still be being written. This decoder replaces the `wandb` package, which is a heavy dependency.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from sentinel.readers.log_file import open_binary_log
from sentinel.readers.log_reader import LogReader

FILE_MAGIC = b":W&B"
FILE_HEADER_BYTES = 7
BLOCK_BYTES = 2**15
FRAGMENT_HEADER = Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
MAX_RECORD_BYTES = 2**24
"""A longer record is not a row of metrics and is skipped."""

Fragment = tuple[int, bytes | None, int]
"""Type, bytes if the checksum is right, and offset where it ends."""


def read_payloads(
    path: Path, reader: LogReader, offset: int = FILE_HEADER_BYTES
) -> Iterator[bytes | None]:
    """Records in order; None whenever a live file has no more for now.

    Reading begins at `offset`, where a block begins. `reader.position` is the offset where the
    yielded record ends. A damaged fragment costs its record or, if its length is invalid, the rest
    of its block. Raises OSError.
    """
    parts: list[bytes] = []
    for fragment in _read_fragments(path, reader, offset):
        if fragment is None:
            yield None
            continue
        kind, content, end = fragment
        if kind in (FULL, FIRST) or content is None:
            parts = []
        elif not parts:
            # The start of this record was lost.
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


def _read_fragments(path: Path, reader: LogReader, offset: int) -> Iterator[Fragment | None]:
    with open_binary_log(path) as file:
        while True:
            block_rest = BLOCK_BYTES - offset % BLOCK_BYTES
            if block_rest < FRAGMENT_HEADER.size:
                offset += block_rest
                continue
            file.seek(offset)
            data = file.read(block_rest)
            size, kind, content = _parse_fragment(data)
            if size:
                offset += size
                yield kind, content, offset
            elif len(data) == block_rest and any(data):
                # The block is complete, so this is damage and not a fragment being written.
                offset += block_rest
                yield 0, None, offset
            elif reader.is_live:
                yield None
            else:
                return


def _parse_fragment(data: bytes) -> tuple[int, int, bytes | None]:
    """Size, type and bytes (if the checksum is right) of the first fragment; size 0 if none."""
    if len(data) < FRAGMENT_HEADER.size:
        return 0, 0, None
    checksum, length, kind = FRAGMENT_HEADER.unpack_from(data)
    end = FRAGMENT_HEADER.size + length
    if end > len(data) or not FULL <= kind <= LAST:
        return 0, 0, None
    content = data[FRAGMENT_HEADER.size : end]
    return end, kind, content if zlib.crc32(data[6:end]) == checksum else None
