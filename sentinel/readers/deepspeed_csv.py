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

from sentinel.readers.cells import cells, names, number
from sentinel.readers.lines import lines
from sentinel.readers.log_reader import Reading
from sentinel.readers.row_reader import Row

MOST_FILES = 1000
TOGETHER_SECONDS = 5.0
"""A row that nothing followed for so long is taken to be whole."""

SAMPLES = "Train_Samples_"
"""How the names of the files begin."""

Place = tuple[int, float]
"""Attempt and step."""

Point = tuple[Place, str, str]
"""Where, of what, and how much."""


def named(folder: Path) -> list[Path]:
    """The files of a folder that are such."""
    return sorted(folder.glob(f"{SAMPLES}*.csv"))


def rows(folder: Path, reading: Reading) -> Iterator[Row | None]:
    """Rows of all files, those of one step as one. Raises OSError, ValueError and BegunAnewError.

    `reading.mark` counts numbers. The last row of a live folder may not be whole, and is held back
    until something follows or nothing does for a while.
    """
    files: dict[Path, Iterator[Point | None]] = {}
    own = Reading(lambda _: iter(()), live=reading.live)
    held: tuple[Place, dict[str, str]] | None = None
    grew = 0.0
    while True:
        for file in _new(folder, files):
            files[file] = _points(file, own)
        news = merge(*map(_until_quiet, files.values()), key=_place)
        for place, group in groupby(news, key=_place):
            row = {name: value for _, name, value in group}
            grew = reading.clock()
            if held is not None and place == held[0]:
                held[1].update(row)
            elif held is not None and place < held[0]:
                yield _row(place, row, reading)
            else:
                if held is not None:
                    yield _row(*held, reading)
                held = place, row
        reading.skipped, own.skipped = reading.skipped + own.skipped, 0
        if held is not None and (not own.live or reading.clock() - grew >= TOGETHER_SECONDS):
            yield _row(*held, reading)
            held = None
        if not own.live:
            return
        reading.held = 0 if held is None else len(held[1])
        yield None


def _new(folder: Path, known: dict[Path, Iterator[Point | None]]) -> list[Path]:
    files = named(folder)
    if len(files) > MOST_FILES:
        raise ValueError(f"it holds {len(files)} CSV files, over {MOST_FILES}")
    return [file for file in files if file not in known]


def _row(place: Place, row: dict[str, str], reading: Reading) -> Row:
    reading.mark += len(row)
    return {**row, "step": place[1]}


def _points(file: Path, reading: Reading) -> Iterator[Point | None]:
    """The points of a file, and None wherever a live one has no more for now."""
    attempt, name = 0, file.stem.removeprefix(SAMPLES)
    for line in lines(file, reading):
        if line is None:
            yield None
            continue
        found = cells(line.decode("utf-8", "replace"))
        if names(found) is not None:
            attempt, name = attempt + 1, found[1]
            continue
        step = number(found[0]) if len(found) == 2 else None
        if step is not None and isfinite(step):
            yield (attempt, step), name, found[1]
        else:
            reading.skipped += 1


def _until_quiet(points: Iterator[Point | None]) -> Iterator[Point]:
    for point in points:
        if point is None:
            return
        yield point


def _place(point: Point) -> Place:
    return point[0]
