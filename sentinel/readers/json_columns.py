"""JSON columns: an object with a list of numbers per metric, such as the history of Keras.

If it has none, its longest list of objects that have a step, an episode or an epoch are the rows.

The file is written once, at the end of a training, or rewritten as it grows.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from sentinel.readers.cells import STEP_COLUMNS
from sentinel.readers.log_file import log_stem, open_log_file
from sentinel.readers.log_reader import LogReader, LogRestartedError, Row, row_reader
from sentinel.readers.rows import STEP_KEYS, RowConverter
from sentinel.readers.trainer_state import HISTORY_KEY
from sentinel.signals.key_words import infer_signal

FORMAT_NAME = "JSON columns"

MAX_BYTES = 1 << 24
MIN_ROWS = 2

_FIRST_COLUMN = re.compile(
    rb'(?:\xef\xbb\xbf)?\s*\{\s*"[^"]{1,200}"\s*:\s*(?:\[\s*[\dNI{-]|\{|-?\d)'
)

_ROW_KEYS = (*STEP_KEYS, "epoch")
"""Keys of a log with one row a line, of which this may be the first."""


def can_read(path: Path, head: bytes) -> bool:
    """Whether the file is one object with lists of numbers, or a list of rows with a step."""
    first, _, rest = head.strip().partition(b"\n")
    if path.is_dir() or not _FIRST_COLUMN.match(head) or (rest and first.rstrip().endswith(b"}")):
        return False
    if f'"{HISTORY_KEY}"'.encode() in head:
        return False
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_size <= MAX_BYTES and _has_rows(path, status.st_size, status.st_mtime_ns)


# The files of a folder are looked at again and again while it is served.
@lru_cache(maxsize=1024)
def _has_rows(path: Path, size: int, modified_at: int) -> bool:  # noqa: ARG001 - part of the cache key
    try:
        return bool(read_rows(path))
    except (OSError, ValueError):
        return False


def read(path: Path) -> LogReader:
    """Records of the run, one a row. Raises OSError or ValueError, while iterating."""

    def make_converter(_: Mapping[str, Any]) -> RowConverter:
        return RowConverter(run=log_stem(path))

    return row_reader(make_converter, lambda reader: _follow_rows(path, reader))


def _follow_rows(path: Path, reader: LogReader) -> Iterator[Row | None]:
    """The rows, and those that each rewritten file adds."""
    yielded, modified_at = list[Row](), -1
    while True:
        if (now := path.stat().st_mtime_ns) != modified_at:
            try:
                rows = read_rows(path)
            except ValueError:
                if not reader.is_live:
                    raise
                rows = yielded
            if rows[: len(yielded)] != yielded:
                raise LogRestartedError
            for row in rows[len(yielded) :]:
                reader.position += 1
                yield row
            yielded, modified_at = rows, now
        if not reader.is_live:
            return
        yield None


def read_rows(path: Path) -> list[Row]:
    """The rows of the columns, which are the lists of numbers of the length that most have.

    Raises OSError, and ValueError if there are none.
    """
    with open_log_file(path) as file:
        text = file.read(MAX_BYTES).decode("utf-8-sig")
    try:
        loaded = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    value: dict[str, Any] = loaded if isinstance(loaded, dict) else {}
    if any(type(value.get(key)) in {int, float} for key in _ROW_KEYS):
        raise ValueError("it is a row of a log, which has a step")
    found = dict(_lists(value))
    lengths = Counter(len(column) for column in found.values() if len(column) >= MIN_ROWS)
    if not lengths:
        return _longest_rows(value)
    length = max(lengths, key=lambda each: (lengths[each], each))
    columns = {name: column for name, column in found.items() if len(column) == length}
    if _is_number_or_none(next(iter(value.values()))) and not any(map(infer_signal, columns)):
        raise ValueError("it holds settings")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _longest_rows(value: Mapping[str, Any]) -> list[Row]:
    """The longest list of objects with a step. Raises ValueError if there is none."""
    lists = [rows for rows in value.values() if isinstance(rows, list) and len(rows) >= MIN_ROWS]
    found = [rows for rows in lists if all(map(_has_step, rows))]
    if not found:
        raise ValueError("it holds no list of numbers, nor one of objects with a step")
    return max(found, key=len)


def _has_step(row: object) -> bool:
    return isinstance(row, dict) and not STEP_COLUMNS.isdisjoint(row)


def _lists(value: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    for name, item in value.items():
        if isinstance(item, dict):
            yield from _lists(item)
        elif isinstance(item, list) and item and all(map(_is_number_or_none, item)):
            yield name, item


def _is_number_or_none(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
