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


def read_lines(
    path: Path, reader: LogReader, *, splits_returns: bool = False
) -> Iterator[bytes | None]:
    """Lines that are not blank; None whenever a live file has no more for now.

    `reader.position` is the offset where the yielded line ends, `reader.line_number` its number. If
    `splits_returns`, a carriage return ends a line too, as in the output of a progress bar. A line
    without an end is yielded only if the file is not live. What precedes damage in a compressed
    file is yielded, and `reader.notice` is set. Raises OSError and ValueError as `open_log_file`,
    and LogRestartedError for a live file.
    """
    with open_log_file(path, is_live=reader.is_live) as file:
        offset = file.tell() if file.seekable() else 0
        in_long_line, prefix, rest = False, b"", b""
        reader.line_number = 0
        while True:
            read = _read_line(file, MAX_LINE_BYTES + 1 - len(rest), reader)
            if read is None:
                return
            line, rest = rest + read, b""
            if splits_returns and (end := line.rfind(b"\r") + 1) and not in_long_line:
                end = len(line) if line.endswith(b"\n") else end
                reader.line_number += end == len(line)
                rest = line[end:]
                for piece in line[:end].splitlines(keepends=True):
                    offset += len(piece)
                    if piece.strip():
                        reader.position = offset
                        yield piece
                continue
            complete = line.endswith(b"\n")
            reader.line_number += complete
            if len(line) > MAX_LINE_BYTES and not complete:
                _note_long_line(reader, line, is_begun=in_long_line)
                offset, in_long_line = offset + len(line), True
            elif line and (complete or not reader.is_live):
                offset += len(line)
                if not in_long_line and line.strip():
                    reader.position, reader.line = offset, line
                    yield line
                in_long_line = False
            elif reader.is_live:
                prefix = prefix or _read_prefix(file, offset)
                yield None
                _check_same_file(path, file, prefix, offset)
                file.seek(offset)
            else:
                return


def _note_long_line(reader: LogReader, line: bytes, *, is_begun: bool) -> None:
    """Count a line that is too long, at its first part; the line counter counts it at its end."""
    if not is_begun:
        reader.line_number += 1
        reader.note_unread(line, f"it has more than {MAX_LINE_BYTES >> 20} MiB")
        reader.line_number -= 1


def _read_line(file: IO[bytes], size: int, reader: LogReader) -> bytes | None:
    """The next line, or `size` bytes of it; None, with a notice, at damage."""
    try:
        return file.readline(size)
    except DamagedFileError as error:
        reader.notice = str(error)
        return None


def _read_prefix(file: IO[bytes], read_bytes: int) -> bytes:
    """The beginning of the file, as far as it was read."""
    file.seek(0)
    return file.read(min(read_bytes, FINGERPRINT_BYTES))


def _check_same_file(path: Path, file: IO[bytes], prefix: bytes, offset: int) -> None:
    """Raises LogRestartedError if the file begins otherwise than with `prefix`.

    Or if the path is another file now, or shorter than `offset`.
    """
    if prefix != _read_prefix(file, offset)[: len(prefix)]:
        raise LogRestartedError
    opened = os.fstat(file.fileno())
    try:
        current = path.stat()
    except FileNotFoundError:
        # The file may be about to be replaced.
        return
    if opened.st_ino != current.st_ino or current.st_size < offset:
        raise LogRestartedError
