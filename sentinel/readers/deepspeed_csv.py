"""Metric files: DeepSpeed's folder of CSV files, one a metric, read as they are written.

DeepSpeed counts in samples, and says so in the first name of each file. A restart writes the names
again and goes on below them.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import groupby
from math import isfinite
from pathlib import Path

from sentinel.readers.cells import column_names, parse_number, split_cells
from sentinel.readers.lines import read_lines
from sentinel.readers.log_reader import LogReader
from sentinel.readers.row_reader import Row

MAX_FILES = 1000
MAX_ROW_GAP_SECONDS = 5.0
"""A row that nothing followed for so long is taken to be whole."""

FILE_PREFIX = "Train_Samples_"
"""How the names of the files begin."""

StepKey = tuple[int, float]
"""Attempt and step."""

MetricPoint = tuple[StepKey, str, str]
"""Where, of what, and how much."""


def metric_files(folder: Path) -> list[Path]:
    """The files of a folder that are such."""
    return sorted(folder.glob(f"{FILE_PREFIX}*.csv"))


def read_rows(folder: Path, reader: LogReader) -> Iterator[Row | None]:
    """Rows of all files, those of one step as one. Raises OSError, ValueError and BegunAnewError.

    `reading.mark` counts numbers. The last row of a live folder may not be whole, and is held back
    until something follows or nothing does for a while.
    """
    files: dict[Path, Iterator[MetricPoint | None]] = {}
    own = LogReader(lambda _: iter(()), is_live=reader.is_live)
    held: tuple[StepKey, dict[str, str]] | None = None
    grew = 0.0
    while True:
        for file in _new_files(folder, files):
            files[file] = _read_points(file, own)
        news = merge(*map(_available_points, files.values()), key=_step_key)
        for place, group in groupby(news, key=_step_key):
            row = {name: value for _, name, value in group}
            grew = reader.clock()
            if held is not None and place == held[0]:
                held[1].update(row)
            elif held is not None and place < held[0]:
                yield _finish_row(place, row, reader)
            else:
                if held is not None:
                    yield _finish_row(*held, reader)
                held = place, row
        reader.skipped, own.skipped = reader.skipped + own.skipped, 0
        if held is not None and (not own.is_live or reader.clock() - grew >= MAX_ROW_GAP_SECONDS):
            yield _finish_row(*held, reader)
            held = None
        if not own.is_live:
            return
        reader.pending_count = 0 if held is None else len(held[1])
        yield None


def _new_files(folder: Path, known: dict[Path, Iterator[MetricPoint | None]]) -> list[Path]:
    files = metric_files(folder)
    if len(files) > MAX_FILES:
        raise ValueError(f"it holds {len(files)} CSV files, over {MAX_FILES}")
    return [file for file in files if file not in known]


def _finish_row(step_key: StepKey, row: dict[str, str], reading: LogReader) -> Row:
    reading.position += len(row)
    return {**row, "step": step_key[1]}


def _read_points(file: Path, reading: LogReader) -> Iterator[MetricPoint | None]:
    """The points of a file, and None wherever a live one has no more for now."""
    attempt, name = 0, file.stem.removeprefix(FILE_PREFIX)
    for line in read_lines(file, reading):
        if line is None:
            yield None
            continue
        found = split_cells(line.decode("utf-8", "replace"))
        if column_names(found) is not None:
            attempt, name = attempt + 1, found[1]
            continue
        step = parse_number(found[0]) if len(found) == 2 else None
        if step is not None and isfinite(step):
            yield (attempt, step), name, found[1]
        else:
            reading.skipped += 1


def _available_points(points: Iterator[MetricPoint | None]) -> Iterator[MetricPoint]:
    for point in points:
        if point is None:
            return
        yield point


def _step_key(point: MetricPoint) -> StepKey:
    return point[0]
