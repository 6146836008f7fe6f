"""Lines: the whole lines of a growing text file, each with where it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sentinel.readers.log_reader import LogReader

MAX_LINE_BYTES = 2**20
"""Bytes; a longer line is passed over without being held in memory."""

FINGERPRINT_BYTES = 256
"""Bytes of the beginning by which a file is known again."""


class LogRestartedError(Exception):
    """The file is shorter than what was read of it, or another one under its name."""


def read_lines(path: Path, reader: LogReader) -> Iterator[bytes | None]:
    """Lines that are not blank; None wherever a live file has no more for now.

    `reading.mark` is where the line given ends, in bytes. A line that is cut off by the end of the
    file is given only where nothing can follow. Raises OSError, and BegunAnewError of a live file.
    """
    with path.open("rb") as file:
        at, long, head = 0, False, b""
        while True:
            line = file.readline(MAX_LINE_BYTES + 1)
            whole = line.endswith(b"\n")
            if len(line) > MAX_LINE_BYTES and not whole:
                reader.skipped += not long
                at, long = at + len(line), True
            elif line and (whole or not reader.is_live):
                at += len(line)
                if not long and line.strip():
                    reader.position = at
                    yield line
                long = False
            elif reader.is_live:
                head = head or _read_fingerprint(file, at)
                yield None
                if head != _read_fingerprint(file, at)[: len(head)]:
                    raise LogRestartedError
                _check_same_file(path, file.fileno(), at)
                file.seek(at)
            else:
                return


def _read_fingerprint(file: IO[bytes], read_bytes: int) -> bytes:
    """The beginning of the file, as far as it was read."""
    file.seek(0)
    return file.read(min(read_bytes, FINGERPRINT_BYTES))


def _check_same_file(path: Path, descriptor: int, offset: int) -> None:
    """Raises BegunAnewError unless the open file is what lies there, and as long as it was."""
    ours = os.fstat(descriptor)
    try:
        there = path.stat()
    except FileNotFoundError:
        # It may be just being replaced.
        return
    if ours.st_ino != there.st_ino or there.st_size < offset:
        raise LogRestartedError
