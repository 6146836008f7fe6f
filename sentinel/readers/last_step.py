"""The last step of a log, from the end of its files only: what a list shows before the log is read.

It is a hint: steps that are counted in each epoch are not added up.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path

from sentinel.readers import (
    console,
    csv,
    json_array,
    json_columns,
    jsonl,
    number_columns,
    tensorboard,
    trackio,
    trainer_state,
    verl,
    wandb,
)
from sentinel.readers.cells import find_separator, header_names, split_cells
from sentinel.readers.console_line import parse_console_line
from sentinel.readers.event_file import EventFile
from sentinel.readers.log_file import open_binary_log, open_log_file
from sentinel.readers.log_reader import LogReader
from sentinel.readers.rows import row_step
from sentinel.readers.scalar_event import ScalarDecoder
from sentinel.readers.wandb_file import BLOCK_BYTES, FILE_HEADER_BYTES, read_payloads

TAIL_BYTES = 2**16
MAX_FILES = 8
"""Files of a directory whose ends are read: those that were written last."""

_STEP_MEMBER = re.compile(rb'"(?:global_)?step": (\d{1,15})')


def read_last_step(path: Path, format_name: str) -> int | None:
    """The last step of the log at `path` in that format; None if its end does not show it."""
    find = _FINDERS.get(format_name)
    try:
        return None if find is None else max(find(path), default=None)
    except (OSError, ValueError, RecursionError, sqlite3.Error):
        return None


def _json_steps(path: Path) -> Iterator[int]:
    for line in _last_lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        step = row_step(row) if isinstance(row, dict) else None
        if step is not None:
            yield step


def _table_steps(path: Path) -> Iterator[int]:
    if path.is_dir():
        for file in _newest(csv.log_files(path)):
            yield from _cell_steps(file, ["step"], ",")
        return
    with open_log_file(path) as opened:
        header = opened.readline(TAIL_BYTES).decode("utf-8-sig", "replace")
    yield from _cell_steps(path, header_names(header) or [], find_separator(header))


def _cell_steps(path: Path, columns: list[str], separator: str) -> Iterator[int]:
    for line in _last_lines(path):
        cells = split_cells(line.decode(errors="replace"), separator)
        step = row_step(dict(zip(columns, cells, strict=False)))
        if step is not None:
            yield step


def _console_steps(path: Path) -> Iterator[int]:
    for line in _last_lines(path):
        parsed = parse_console_line(line.decode(errors="replace"))
        if parsed.step is not None and parsed.values and isfinite(parsed.step):
            yield int(parsed.step)


def _number_steps(path: Path) -> Iterator[int]:
    columns = number_columns.find_columns(path)
    for line in _last_lines(path) if columns and columns.has_step else ():
        numbers = number_columns.parse_numbers(line)
        if numbers is not None and isfinite(numbers[0]):
            yield int(numbers[0])


def _state_steps(path: Path) -> Iterator[int]:
    files = trainer_state.log_files(path)[:1] if path.is_dir() else [path]
    for file in files:
        for match in _STEP_MEMBER.finditer(_tail(file)):
            yield int(match[1])


def _column_steps(path: Path) -> Iterator[int]:
    rows = json_columns.read_rows(path)
    step = row_step(rows[-1])
    yield len(rows) if step is None else step


def _event_steps(path: Path) -> Iterator[int]:
    files = tensorboard.log_files(path) if path.is_dir() else [path]
    for file in _newest(files):
        events = EventFile(file, max(0, file.stat().st_size - TAIL_BYTES))
        decoder = ScalarDecoder()
        for payload in events.poll():
            try:
                yield from (step for _, step, _, _ in decoder.decode(payload))
            except ValueError:
                continue


def _wandb_steps(path: Path) -> Iterator[int]:
    files = wandb.log_files(path) if path.is_dir() else [path]
    for file in files[:1]:
        block = max(0, file.stat().st_size - TAIL_BYTES) // BLOCK_BYTES * BLOCK_BYTES
        reader = LogReader(lambda _: iter(()))
        for payload in read_payloads(file, reader, max(block, FILE_HEADER_BYTES)):
            row = wandb.decode_row(payload) if payload is not None else {}
            step = row_step(row)
            if step is not None:
                yield step


def _project_steps(path: Path) -> Iterator[int]:
    step = trackio.last_step(path.parent, path.name)
    if step is not None:
        yield step


_FINDERS: dict[str, Callable[[Path], Iterator[int]]] = {
    console.FORMAT_NAME: _console_steps,
    json_array.FORMAT_NAME: _state_steps,
    csv.FORMAT_NAME: _table_steps,
    json_columns.FORMAT_NAME: _column_steps,
    jsonl.FORMAT_NAME: _json_steps,
    number_columns.FORMAT_NAME: _number_steps,
    verl.FORMAT_NAME: _json_steps,
    tensorboard.FORMAT_NAME: _event_steps,
    trackio.FORMAT_NAME: _project_steps,
    trainer_state.FORMAT_NAME: _state_steps,
    wandb.FORMAT_NAME: _wandb_steps,
}


def _last_lines(path: Path) -> list[bytes]:
    """The last complete lines of a text that is not compressed."""
    lines = _tail(path).split(b"\n")
    # The first may be cut off at its beginning, and the last at its end.
    return [line for line in lines[-20:-1] if line.strip()]


def _tail(path: Path) -> bytes:
    with open_binary_log(path) as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        return file.read(TAIL_BYTES)


def _newest(files: list[Path]) -> list[Path]:
    return sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)[:MAX_FILES]
