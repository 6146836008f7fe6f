"""CSV: a table whose first line names the columns, or DeepSpeed's directory with a file per metric.

A line may leave cells empty: Lightning writes validation metrics on lines of their own. A later
header line replaces the column names from there on; numbers behind the last column have no name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sentinel.readers import deepspeed_csv
from sentinel.readers.cells import (
    COUNT_COLUMNS,
    column_names,
    find_separator,
    header_names,
    split_cells,
)
from sentinel.readers.lines import read_lines
from sentinel.readers.log_file import log_stem, uncompressed_name
from sentinel.readers.log_reader import HEAD_BYTES, LogReader, LogRestartedError, Row, file_reader
from sentinel.readers.rows import STEP_KEYS, parse_number

FORMAT_NAME = "CSV"


def can_read(path: Path, head: bytes) -> bool:
    """Whether the first line names columns, one of them a step, or it is DeepSpeed's directory."""
    if path.is_dir():
        return bool(deepspeed_csv.metric_files(path))
    first, _, rest = head.decode("utf-8-sig", "replace").partition("\n")
    if not rest and len(head) < HEAD_BYTES:
        # A header without a row may be any text, unless the file name has the suffix of a table.
        return uncompressed_name(path).suffix == ".csv" and header_names(first) is not None
    return header_names(first) is not None


def read(path: Path) -> LogReader:
    """Records of the file or directory. Raises OSError or ValueError, while iterating."""
    run = path.resolve().name if path.is_dir() else log_stem(path)
    read_rows = deepspeed_csv.read_rows if path.is_dir() else _follow_table
    return file_reader(path, run, lambda reader: read_rows(path, reader))


def log_files(folder: Path) -> list[Path]:
    """The files in DeepSpeed's directory."""
    return deepspeed_csv.metric_files(folder)


def _follow_table(path: Path, reader: LogReader) -> Iterator[Row | None]:
    yielded = 0
    while True:
        try:
            for row in _read_rows(path, reader, yielded):
                yielded += row is not None
                reader.position = yielded
                yield row
        except LogRestartedError:
            # Lightning rewrites the whole file, with more columns, when a metric is added.
            if sum(1 for _ in _read_rows(path, LogReader(iter), 0)) < yielded:
                raise
            continue
        return


def _read_rows(path: Path, reader: LogReader, skip: int) -> Iterator[Row | None]:
    """The rows after the first `skip`, by the column names above them."""
    columns: list[str] = []
    counts: tuple[str, ...] = ()
    separator = ""
    for line in read_lines(path, reader):
        if line is None:
            yield None
            continue
        text = line.decode("utf-8-sig", "replace")
        # The commas of a line may be decimal ones, or in a text.
        used = separator if separator and separator in text else find_separator(text)
        cells = split_cells(text, used)
        if (names := column_names(cells)) is not None:
            columns, separator = names, used
            counts = () if set(STEP_KEYS) & {*names} else COUNT_COLUMNS
        elif skip:
            skip -= 1
        else:
            # A line with another number of cells may come from another writer; one of more numbers
            # from a trainer that has appended a column.
            are_numbers = None not in map(parse_number, filter(None, cells))
            is_read = len(cells) == len(columns) or (len(cells) > len(columns) and are_numbers)
            if not is_read:
                reader.problem = f"it has {len(cells)} cells, and the header {len(columns)}"
            yield _to_row(columns, counts, cells) if is_read else {}


def _to_row(columns: list[str], counts: tuple[str, ...], cells: list[str]) -> Row:
    """The cells that are not empty; the first of `counts` that is there is the step."""
    row = {name: cell for name, cell in zip(columns, cells, strict=False) if cell}
    count = next((name for name in counts if name in row), None)
    return row if count is None else {"step": row[count], **row}
