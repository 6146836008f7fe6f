"""CSV: a table with a line of names first, or DeepSpeed's folder of one such file a metric.

A line may leave cells empty, as Lightning's do: validation has lines of its own. Names that come
up later, in a second line of names, are taken over from there on. DeepSpeed counts in samples, and
says so in the first name of each file.
"""

from __future__ import annotations

import csv as standard
from collections.abc import Iterator, Mapping
from heapq import merge
from itertools import groupby
from pathlib import Path
from typing import Any

from sentinel.sources.lines import BegunAnewError, lines
from sentinel.sources.reading import Reading
from sentinel.sources.rows import STEP_KEYS, Rows
from sentinel.sources.telling import Row, telling

LONGEST_HEAD = 4096
MOST_FILES = 1000
SEPARATORS = (",", "\t", ";")
STEPS = frozenset({*STEP_KEYS, "steps", "epoch"})
SAMPLES = "Train_Samples_"
"""How the names of DeepSpeed's files begin."""


def recognises(path: Path, head: bytes) -> bool:
    """Whether the first line is names of columns, one a step, or a folder of DeepSpeed's."""
    if path.is_dir():
        return bool(_metrics(path))
    first, _, rest = head.decode("utf-8-sig", "replace").partition("\n")
    if not rest and len(head) < LONGEST_HEAD:
        # A table without a line holds nothing yet, unless it is called one.
        return path.suffix == ".csv" and _names(_cells(first)) is not None
    return _names(_cells(first)) is not None


def read(path: Path) -> Reading:
    """Records of the file or folder. Raises OSError or ValueError, while iterating."""

    def rows(_: Mapping[str, Any]) -> Rows:
        return Rows(run=path.resolve().name if path.is_dir() else path.stem)

    def found(reading: Reading) -> Iterator[Row | None]:
        return _merged(path, reading) if path.is_dir() else _table(path, reading)

    return telling(rows, found)


def _table(path: Path, reading: Reading) -> Iterator[Row | None]:
    told = 0
    while True:
        try:
            for row in _rows(path, reading, told):
                told += row is not None
                reading.mark = told
                yield row
        except BegunAnewError:
            # Lightning writes the whole file anew, longer, when a column comes up.
            if sum(1 for _ in _rows(path, Reading(iter), 0)) < told:
                raise
            continue
        return


def _rows(path: Path, reading: Reading, skip: int) -> Iterator[Row | None]:
    """The rows after the first `skip`, by the names that stand above them."""
    names: list[str] = []
    for line in lines(path, reading):
        cells = [] if line is None else _cells(line.decode("utf-8-sig", "replace"))
        if line is None:
            yield None
        elif (new := _names(cells)) is not None:
            names = new
        elif skip:
            skip -= 1
        else:
            # What has other cells than there are names may be of another writer.
            yield _row(names, cells) if len(cells) == len(names) else {}


def _row(names: list[str], cells: list[str]) -> Row:
    return {name: cell for name, cell in zip(names, cells, strict=True) if cell}


def _merged(path: Path, reading: Reading) -> Iterator[Row | None]:
    """Rows of all files of a folder, those of one step as one."""
    if reading.live:
        raise ValueError("a folder of CSV files cannot be followed: name one of its files")
    files = _metrics(path)
    if len(files) > MOST_FILES:
        raise ValueError(f"it holds {len(files)} CSV files, over {MOST_FILES}")
    points = merge(*(_points(file, reading) for file in files), key=lambda point: point[0])
    for (_, step), group in groupby(points, key=lambda point: point[0]):
        yield {"step": step, **{name: value for _, name, value in group}}


def _points(file: Path, reading: Reading) -> Iterator[tuple[tuple[int, float], str, str]]:
    """Attempt and step, name and value of each line; a restart writes the names again."""
    attempt, name = 0, file.stem.removeprefix(SAMPLES)
    for line in lines(file, reading):
        cells = _cells((line or b"").decode("utf-8", "replace"))
        if _names(cells) is not None:
            attempt, name = attempt + 1, cells[1]
            continue
        step = _number(cells[0])
        if len(cells) == 2 and step is not None:
            yield (attempt, step), name, cells[1]
        else:
            reading.skipped += 1


def _metrics(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{SAMPLES}*.csv"))


def _cells(line: str) -> list[str]:
    separator = max(SEPARATORS, key=line.count)
    try:
        return [cell.strip() for cell in next(standard.reader([line], delimiter=separator), [])]
    except standard.Error:
        return []


def _names(cells: list[str]) -> list[str] | None:
    """The cells, if they are names of at least two columns, one of them a step."""
    if len(cells) < 2 or not STEPS.intersection(map(str.lower, cells)):
        return None
    if any(_number(cell) is not None for cell in cells):
        return None
    return [cell.lower() if cell.lower() in STEPS else cell for cell in cells]


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
