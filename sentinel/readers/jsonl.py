"""JSONL: one JSON object a line, flat or nested, as most trainers and trackers can write.

NaN and Infinity may be bare tokens or strings. A line that cannot be used is counted and passed
over. A line with an "event" of `start` or `save` tells of that instead of a step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sentinel.readers.lines import read_lines
from sentinel.readers.log_config import LoggedConfig, read_config_file
from sentinel.readers.log_reader import LogReader
from sentinel.readers.row_reader import row_reader
from sentinel.readers.rows import RowConverter

VERL_LINE = re.compile(rb'\s*\{\s*"step"\s*:\s*\d+\s*,\s*"data"\s*:\s*\{')
"""How lines of verl's own file logger begin; a source of its own reads them."""


def can_read(path: Path, head: bytes) -> bool:
    """Whether the first line that is not blank is a whole JSON object, or begins a long one.

    One with `log_history` is no line of a log, but a whole history.
    """
    if path.is_dir() or VERL_LINE.match(head):
        return False
    lines = head.lstrip().split(b"\n", 1)
    if len(lines) == 1 and len(head) > 1000:
        return lines[0].startswith(b"{") and b'"log_history"' not in lines[0]
    first = _parse_object(lines[0])
    return first is not None and "log_history" not in first


def read(path: Path) -> LogReader:
    """Records of the file. Raises OSError, while iterating, if it cannot be opened."""

    def rows(first: Mapping[str, Any]) -> RowConverter:
        # verl's own file logger nests under "data", and its encoder turns NaN into null.
        return RowConverter(run=path.stem, null_is_nan=first.keys() == {"step", "data"})

    def found(reading: LogReader) -> Iterator[dict[str, Any] | LoggedConfig | None]:
        if (said := read_config_file(path)) is not None:
            yield said
        for line in read_lines(path, reading):
            yield None if line is None else _parse_object(line) or {}

    return row_reader(rows, found)


def _parse_object(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line.decode("utf-8", "surrogatepass").removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
