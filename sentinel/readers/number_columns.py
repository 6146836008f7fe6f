"""Columns of numbers whose header, if there is one, names no step: `step loss` without the names.

Columns are separated by spaces, tabs, commas or semicolons. Those without a name are `column_1`,
`column_2` and so on, and `[keys]` in the settings says what they are. A first column of integers
that grow is the step; else rows are counted. The columns r, l and t of the Monitor wrapper of Gym
environments have no step either: a row is one episode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from sentinel.readers import console
from sentinel.readers.cells import COMMENT, find_separator, split_cells
from sentinel.readers.console_table import MAX_COLUMNS
from sentinel.readers.lines import read_lines
from sentinel.readers.log_file import log_stem, open_log_file
from sentinel.readers.log_reader import HEAD_BYTES, LogReader, Row, file_reader
from sentinel.readers.rows import parse_number

FORMAT_NAME = "Columns of numbers"

IS_FALLBACK = True
"""This reader is tried after those that find names, that of console output included."""

MIN_LINES = 8
"""Lines of as many numbers one after another that show columns: a printed matrix is smaller."""

MONITOR_COLUMNS = {"r": "episode_reward", "l": "episode_length", "t": "seconds"}
"""What the first columns of a Monitor file are, which its header names by a letter each."""

_NAME = re.compile(r"[A-Za-z_][^:=]{0,79}$")
_WIDE = re.compile(r"[\t,;]|\s\s")


@dataclass(frozen=True)
class Columns:
    """Columns that begin in a line, whose number counts from 1; `has_step` is of the first one."""

    line: int
    names: tuple[str, ...]
    has_step: bool
    is_named: bool


def can_read(path: Path, head: bytes) -> bool:
    """Whether `MIN_LINES` lines in a row have as many numbers, and nothing else."""
    return not path.is_dir() and console.is_text(head) and _find_columns(head) is not None


def read(path: Path) -> LogReader:
    """Records of the file. Raises OSError, while iterating, if it cannot be opened."""

    def rows(reader: LogReader) -> Iterator[Row | None]:
        if (columns := find_columns(path, is_live=reader.is_live)) is not None:
            yield from _read_rows(path, reader, columns)

    return file_reader(path, log_stem(path), rows)


def find_columns(path: Path, *, is_live: bool = False) -> Columns | None:
    """The first columns of a file. Raises OSError or ValueError as `open_log_file`."""
    with open_log_file(path, is_live=is_live) as file:
        return _find_columns(file.peek()[:HEAD_BYTES])


def _read_rows(path: Path, reader: LogReader, columns: Columns) -> Iterator[Row | None]:
    names = columns.names
    if not columns.is_named and reader.keys.keys().isdisjoint(names):
        step = f" {names[0]} is the step." if columns.has_step else ""
        reader.notice = (
            f"from line {columns.line} on it has columns without names: {len(names)}.{step} "
            "`sentinel inspect` shows them, and [keys] in the settings says what they are"
        )
    for line in read_lines(path, reader):
        numbers = None if line is None else parse_numbers(line)
        if line is None:
            yield None
        elif numbers is None or len(numbers) != len(names):
            problem = f"it is no line of {len(names)} numbers"
            reader.note_unread(line, problem, is_skipped=reader.line_number > columns.line)
        else:
            row = dict(zip(names, numbers, strict=True))
            yield {"step": row.pop(names[0]), **row} if columns.has_step else row


def _find_columns(head: bytes) -> Columns | None:
    """The first columns in the beginning of a file; few lines suffice behind a comment of names."""
    lines = head.decode("utf-8-sig", "replace").splitlines()
    if len(head) >= HEAD_BYTES:
        lines.pop()
    block: list[list[float]] = []
    above = header = ""
    for number, line in enumerate(lines, start=1):
        numbers = parse_numbers(line.encode())
        if numbers is None or not block or len(numbers) != len(block[0]):
            block, header = [], above
        if numbers is not None:
            block.append(numbers)
            columns = _describe(block, header, number - len(block) + 1)
            if len(block) >= MIN_LINES or (columns.is_named and _is_comment(header)):
                return columns
        above = line
    return None


def _describe(block: list[list[float]], header: str, line: int) -> Columns:
    count, first = len(block[0]), [row[0] for row in block]
    names = [name.strip("'\" ") for name in _split(header.lstrip(COMMENT))]
    # One space separates the words of a sentence too.
    is_table = _is_comment(header) or count == 1 or _WIDE.search(header.strip()) is not None
    is_named = is_table and len({*names}) == count == len(names) and all(map(_NAME.match, names))
    if not is_named:
        names = [f"column_{at}" for at in range(1, count + 1)]
    if names[: len(MONITOR_COLUMNS)] == [*MONITOR_COLUMNS]:
        names[: len(MONITOR_COLUMNS)] = MONITOR_COLUMNS.values()
        return Columns(line, tuple(names), has_step=False, is_named=is_named)
    has_step = count > 1 and all(
        earlier < later and later.is_integer()
        for earlier, later in pairwise([first[0] - 1, *first])
    )
    return Columns(line, tuple(names), has_step, is_named)


def _is_comment(line: str) -> bool:
    return line[:1] != "" and line[0] in COMMENT.strip()


def _split(line: str) -> list[str]:
    separator = find_separator(line)
    return split_cells(line, separator) if separator in line else line.split()


def parse_numbers(line: bytes) -> list[float] | None:
    """The numbers of a line; None if it has anything else, or none."""
    cells = _split(line.decode("utf-8-sig", "replace"))
    numbers = [number for cell in cells if (number := parse_number(cell)) is not None]
    return numbers if 0 < len(numbers) == len(cells) <= MAX_COLUMNS else None
