"""CSV: a table with a line of names first, or DeepSpeed's folder of one such file a metric.

A line may leave cells empty, as Lightning's do: validation has lines of its own. Names that come
up later, in a second line of names, are taken over from there on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sentinel.readers import deepspeed_csv
from sentinel.readers.cells import column_names, split_cells
from sentinel.readers.lines import LogRestartedError, read_lines
from sentinel.readers.log_config import LoggedConfig, read_config_file
from sentinel.readers.log_reader import LogReader
from sentinel.readers.row_reader import Row, row_reader
from sentinel.readers.rows import RowConverter

MAX_HEAD_BYTES = 4096


def can_read(path: Path, head: bytes) -> bool:
    """Whether the first line is names of columns, one a step, or a folder of DeepSpeed's."""
    if path.is_dir():
        return bool(deepspeed_csv.metric_files(path))
    first, _, rest = head.decode("utf-8-sig", "replace").partition("\n")
    if not rest and len(head) < MAX_HEAD_BYTES:
        # A table without a line holds nothing yet, unless it is called one.
        return path.suffix == ".csv" and column_names(split_cells(first)) is not None
    return column_names(split_cells(first)) is not None


def read(path: Path) -> LogReader:
    """Records of the file or folder. Raises OSError or ValueError, while iterating."""

    def rows(_: Mapping[str, Any]) -> RowConverter:
        return RowConverter(run=path.resolve().name if path.is_dir() else path.stem)

    def found(reading: LogReader) -> Iterator[Row | LoggedConfig | None]:
        if (said := read_config_file(path)) is not None:
            yield said
        yield from (
            deepspeed_csv.read_rows(path, reading)
            if path.is_dir()
            else _follow_table(path, reading)
        )

    return row_reader(rows, found)


def _follow_table(path: Path, reading: LogReader) -> Iterator[Row | None]:
    told = 0
    while True:
        try:
            for row in _read_rows(path, reading, told):
                told += row is not None
                reading.position = told
                yield row
        except LogRestartedError:
            # Lightning writes the whole file anew, longer, when a column comes up.
            if sum(1 for _ in _read_rows(path, LogReader(iter), 0)) < told:
                raise
            continue
        return


def _read_rows(path: Path, reading: LogReader, skip: int) -> Iterator[Row | None]:
    """The rows after the first `skip`, by the names that stand above them."""
    head: list[str] = []
    for line in read_lines(path, reading):
        found = [] if line is None else split_cells(line.decode("utf-8-sig", "replace"))
        if line is None:
            yield None
        elif (new := column_names(found)) is not None:
            head = new
        elif skip:
            skip -= 1
        else:
            # What has other cells than there are names may be of another writer.
            yield _to_row(head, found) if len(found) == len(head) else {}


def _to_row(columns: list[str], cells: list[str]) -> Row:
    return {name: cell for name, cell in zip(columns, cells, strict=True) if cell}
