"""Complete lines of a growing text file, with the position where each ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sentinel.readers.log_file import DamagedFileError, open_log_file
from sentinel.readers.log_reader import LogReader, LogRestartedError

MAX_LINE_BYTES = 2**20
"""A longer line is skipped without being held in memory."""

FINGERPRINT_BYTES = 256
"""Length of the prefix that identifies a file."""


def read_lines(path: Path, reader: LogReader) -> Iterator[bytes | None]:
    """Lines that are not blank; None whenever a live file has no more for now.

    `reader.position` is the offset where the yielded line ends. A line without a newline at the end
    of the file is yielded only if the file is not live. What precedes damage in a compressed file
    is yielded, and `reader.notice` is set. Raises OSError and ValueError as `open_log_file`, and
    LogRestartedError for a live file.
    """
    with open_log_file(path, is_live=reader.is_live) as file:
        offset, in_long_line, prefix = 0, False, b""
        while True:
            try:
                line = file.readline(MAX_LINE_BYTES + 1)
            except DamagedFileError as error:
                reader.notice = str(error)
                return
            complete = line.endswith(b"\n")
            if len(line) > MAX_LINE_BYTES and not complete:
                reader.skipped += not in_long_line
                offset, in_long_line = offset + len(line), True
            elif line and (complete or not reader.is_live):
                offset += len(line)
                if not in_long_line and line.strip():
                    reader.position = offset
                    yield line
                in_long_line = False
            elif reader.is_live:
                prefix = prefix or _read_prefix(file, offset)
                yield None
                if prefix != _read_prefix(file, offset)[: len(prefix)]:
                    raise LogRestartedError
                _check_same_file(path, file.fileno(), offset)
                file.seek(offset)
            else:
                return


def _read_prefix(file: IO[bytes], read_bytes: int) -> bytes:
    """The beginning of the file, as far as it was read."""
    file.seek(0)
    return file.read(min(read_bytes, FINGERPRINT_BYTES))


def _check_same_file(path: Path, descriptor: int, offset: int) -> None:
    """Raises LogRestartedError if the path is another file now, or shorter than `offset`."""
    opened = os.fstat(descriptor)
    try:
        current = path.stat()
    except FileNotFoundError:
        # The file may be about to be replaced.
        return
    if opened.st_ino != current.st_ino or current.st_size < offset:
        raise LogRestartedError
