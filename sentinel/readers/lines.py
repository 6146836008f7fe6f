"""Lines: the whole lines of a growing text file, each with where it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sentinel.readers.log_reader import Reading

LONGEST_LINE = 2**20
"""Bytes; a longer line is passed over without being held in memory."""

HEAD = 256
"""Bytes of the beginning by which a file is known again."""


class BegunAnewError(Exception):
    """The file is shorter than what was read of it, or another one under its name."""


def lines(path: Path, reading: Reading) -> Iterator[bytes | None]:
    """Lines that are not blank; None wherever a live file has no more for now.

    `reading.mark` is where the line given ends, in bytes. A line that is cut off by the end of the
    file is given only where nothing can follow. Raises OSError, and BegunAnewError of a live file.
    """
    with path.open("rb") as file:
        at, long, head = 0, False, b""
        while True:
            line = file.readline(LONGEST_LINE + 1)
            whole = line.endswith(b"\n")
            if len(line) > LONGEST_LINE and not whole:
                reading.skipped += not long
                at, long = at + len(line), True
            elif line and (whole or not reading.live):
                at += len(line)
                if not long and line.strip():
                    reading.mark = at
                    yield line
                long = False
            elif reading.live:
                head = head or _head(file, at)
                yield None
                if head != _head(file, at)[: len(head)]:
                    raise BegunAnewError
                _same(path, file.fileno(), at)
                file.seek(at)
            else:
                return


def _head(file: IO[bytes], read: int) -> bytes:
    """The beginning of the file, as far as it was read."""
    file.seek(0)
    return file.read(min(read, HEAD))


def _same(path: Path, number: int, at: int) -> None:
    """Raises BegunAnewError unless the open file is what lies there, and as long as it was."""
    ours = os.fstat(number)
    try:
        there = path.stat()
    except FileNotFoundError:
        # It may be just being replaced.
        return
    if ours.st_ino != there.st_ino or there.st_size < at:
        raise BegunAnewError
