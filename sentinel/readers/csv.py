"""CSV: a table with a line of names first, or DeepSpeed's folder of one such file a metric.

A line may leave cells empty, as Lightning's do: validation has lines of its own. Names that come
up later, in a second line of names, are taken over from there on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sentinel.readers import deepspeed_csv
from sentinel.readers.cells import cells, names
from sentinel.readers.lines import BegunAnewError, lines
from sentinel.readers.log_config import Stated, beside
from sentinel.readers.log_reader import Reading
from sentinel.readers.row_reader import Row, telling
from sentinel.readers.rows import Rows

LONGEST_HEAD = 4096


def recognises(path: Path, head: bytes) -> bool:
    """Whether the first line is names of columns, one a step, or a folder of DeepSpeed's."""
    if path.is_dir():
        return bool(deepspeed_csv.named(path))
    first, _, rest = head.decode("utf-8-sig", "replace").partition("\n")
    if not rest and len(head) < LONGEST_HEAD:
        # A table without a line holds nothing yet, unless it is called one.
        return path.suffix == ".csv" and names(cells(first)) is not None
    return names(cells(first)) is not None


def read(path: Path) -> Reading:
    """Records of the file or folder. Raises OSError or ValueError, while iterating."""

    def rows(_: Mapping[str, Any]) -> Rows:
        return Rows(run=path.resolve().name if path.is_dir() else path.stem)

    def found(reading: Reading) -> Iterator[Row | Stated | None]:
        if (said := beside(path)) is not None:
            yield said
        yield from deepspeed_csv.rows(path, reading) if path.is_dir() else _table(path, reading)

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
    head: list[str] = []
    for line in lines(path, reading):
        found = [] if line is None else cells(line.decode("utf-8-sig", "replace"))
        if line is None:
            yield None
        elif (new := names(found)) is not None:
            head = new
        elif skip:
            skip -= 1
        else:
            # What has other cells than there are names may be of another writer.
            yield _row(head, found) if len(found) == len(head) else {}


def _row(head: list[str], found: list[str]) -> Row:
    return {name: cell for name, cell in zip(head, found, strict=True) if cell}
