"""JSONL: one JSON object per line, flat or nested, as most trainers and trackers write.

NaN and Infinity may be bare tokens or strings. An unusable line is counted and skipped. A line with
an "event", such as `start` or `save`, is a record of that event instead of a step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import from_json

from sentinel.readers import json_columns
from sentinel.readers.lines import read_lines
from sentinel.readers.log_config import LoggedConfig, read_config_file
from sentinel.readers.log_file import log_stem
from sentinel.readers.log_message import message_text
from sentinel.readers.log_reader import LogReader, row_reader
from sentinel.readers.rows import RowConverter

FORMAT_NAME = "JSONL"

VERL_LINE = re.compile(rb'\s*\{\s*"step"\s*:\s*\d+\s*,\s*"data"\s*:\s*\{')
"""Start of the lines of verl's file logger, which has a reader of its own."""

LONG_HEAD_BYTES = 1000
"""A longer head without a newline is the start of a long line."""


BLOCK_LINES = 64
"""Lines that are parsed at once, which takes two thirds of the time."""

MAX_BLOCK_LINE_BYTES = 2**16
"""A longer line ends its block, whatever its size."""


class _Line(NamedTuple):
    """A line with the position where it ends, and its number."""

    text: bytes
    position: int
    number: int


def can_read(path: Path, head: bytes) -> bool:
    """Whether the first line that is not blank is a JSON object, or the start of a long one.

    If it is the end of one, as where the start of a log was cut off, the next one counts. An object
    with `log_history` is a trainer state and not a line of a log; one with a message and no metric
    is a line of console output.
    """
    if path.is_dir() or VERL_LINE.match(head) or json_columns.can_read(path, head):
        return False
    lines = head.lstrip().split(b"\n", 2)
    if len(lines) == 1 and len(head) > LONG_HEAD_BYTES:
        return lines[0].startswith(b"{") and b'"log_history"' not in lines[0]
    first = _parse_object(lines[0])
    if first is None and lines[0].rstrip().endswith(b"}") and len(lines) > 1:
        first = _parse_object(lines[1])
    return first is not None and "log_history" not in first and message_text(first) is None


def read(path: Path) -> LogReader:
    """Records of the file. Raises OSError, while iterating, if it cannot be opened."""

    def make_converter(first: Mapping[str, Any]) -> RowConverter:
        # verl's file logger nests its values under "data" and encodes NaN as null.
        return RowConverter(run=log_stem(path), null_is_nan=first.keys() == {"step", "data"})

    def rows(reader: LogReader) -> Iterator[dict[str, Any] | LoggedConfig | None]:
        if (config := read_config_file(path)) is not None:
            yield config
        block: list[_Line] = []
        for line in read_lines(path, reader):
            if line is not None:
                block.append(_Line(line, reader.position, reader.line_number))
            if line is None or len(block) >= BLOCK_LINES or len(line) > MAX_BLOCK_LINE_BYTES:
                yield from _parse_block(block, reader)
                block.clear()
                if line is None:
                    yield None
        yield from _parse_block(block, reader)

    return row_reader(make_converter, rows)


def _parse_block(block: list[_Line], reader: LogReader) -> Iterator[dict[str, Any]]:
    """The row of each line, an empty one if it cannot be read; `reader` is at that line."""
    rows = _parse_flat_objects(block) or [_parse_object(line.text) for line in block]
    last_number = reader.line_number
    for row, (reader.line, reader.position, reader.line_number) in zip(rows, block, strict=True):
        if row is None:
            reader.problem = "it is no JSON object"
        yield row or {}
    reader.line_number = last_number


def _parse_flat_objects(block: list[_Line]) -> Sequence[dict[str, Any] | None] | None:
    """The objects of lines of which each is one without objects in it, else None.

    Each line has one brace that opens an object, so as many objects as lines have one line each.
    """
    if any(line.text.count(b"{") != 1 for line in block):
        return None
    try:
        # Takes a quarter of the time of `json`, and refuses what only that accepts.
        rows = from_json(b"[" + b",".join([line.text for line in block]) + b"]")
    except ValueError:
        return None
    is_exact = len(rows) == len(block) and all(type(row) is dict for row in rows)
    return rows if is_exact else None


def _parse_object(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line.decode("utf-8", "surrogatepass").removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
