"""DeepSpeed's directory of CSV files, one per metric.

The step column counts samples. A restart appends another header line and continues below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import groupby
from math import isfinite
from pathlib import Path

from sentinel.readers.cells import column_names, split_cells
from sentinel.readers.lines import read_lines
from sentinel.readers.log_reader import LogReader, Row
from sentinel.readers.rows import MAX_ROW_GAP_SECONDS, parse_number

MAX_FILES = 1000

FILE_PREFIX = "Train_Samples_"
"""Prefix of the file names."""

StepKey = tuple[int, float]
"""Attempt and step."""

MetricPoint = tuple[StepKey, str, str]
"""Attempt and step, name, value."""


def metric_files(folder: Path) -> list[Path]:
    """The metric files of a directory."""
    return sorted(folder.glob(f"{FILE_PREFIX}*.csv"))


def read_rows(folder: Path, reader: LogReader) -> Iterator[Row | None]:
    """Rows of all files, one per step. Raises OSError, ValueError and LogRestartedError.

    `reader.position` counts numbers. The last row of a live directory may be incomplete; it is held
    back until another step follows, or nothing does for MAX_ROW_GAP_SECONDS.
    """
    files: dict[Path, Iterator[MetricPoint | None]] = {}
    own = LogReader(lambda _: iter(()), is_live=reader.is_live)
    pending: tuple[StepKey, dict[str, str]] | None = None
    last_growth_at = 0.0
    while True:
        for file in _new_files(folder, files):
            files[file] = _read_points(file, own)
        points = merge(*map(_available_points, files.values()), key=_step_key)
        for key, group in groupby(points, key=_step_key):
            row = {name: value for _, name, value in group}
            last_growth_at = reader.clock()
            if pending is not None and key == pending[0]:
                pending[1].update(row)
            elif pending is not None and key < pending[0]:
                yield _finish_row(key, row, reader)
            else:
                if pending is not None:
                    yield _finish_row(*pending, reader)
                pending = key, row
        reader.skipped, own.skipped = reader.skipped + own.skipped, 0
        idle = reader.clock() - last_growth_at
        if pending is not None and (not own.is_live or idle >= MAX_ROW_GAP_SECONDS):
            yield _finish_row(*pending, reader)
            pending = None
        if not own.is_live:
            return
        reader.pending_count = 0 if pending is None else len(pending[1])
        yield None


def _new_files(folder: Path, known: dict[Path, Iterator[MetricPoint | None]]) -> list[Path]:
    files = metric_files(folder)
    if len(files) > MAX_FILES:
        raise ValueError(f"it holds {len(files)} CSV files, more than {MAX_FILES}")
    return [file for file in files if file not in known]


def _finish_row(step_key: StepKey, row: dict[str, str], reader: LogReader) -> Row:
    reader.position += len(row)
    return {**row, "step": step_key[1]}


def _read_points(file: Path, reader: LogReader) -> Iterator[MetricPoint | None]:
    """The points of a file, and None whenever a live one has no more for now."""
    attempt, name = 0, file.stem.removeprefix(FILE_PREFIX)
    for line in read_lines(file, reader):
        if line is None:
            yield None
            continue
        cells = split_cells(line.decode("utf-8", "replace"), ",")
        if column_names(cells) is not None:
            attempt, name = attempt + 1, cells[1]
            continue
        step = parse_number(cells[0]) if len(cells) == 2 else None
        if step is not None and isfinite(step):
            yield (attempt, step), name, cells[1]
        else:
            reader.skipped += 1


def _available_points(points: Iterator[MetricPoint | None]) -> Iterator[MetricPoint]:
    for point in points:
        if point is None:
            return
        yield point


def _step_key(point: MetricPoint) -> StepKey:
    return point[0]
