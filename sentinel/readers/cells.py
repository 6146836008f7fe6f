"""Cells of one line of a table, and the detection of its header line."""

from __future__ import annotations

import csv
import re

from sentinel.readers.rows import STEP_KEYS, parse_number
from sentinel.signals.key_words import infer_signal

SEPARATORS = (",", "\t", ";")
COUNT_COLUMNS = (
    "total/steps",
    "misc/total_timesteps",
    "totalenvinteracts",
    "total/episodes",
    "episode",
    "episodes",
    "steps",
    "timesteps",
    "total/epochs",
    "epochs",
)
"""Columns that count the rows of a table where it has none of STEP_KEYS, best first.

Beside the number of an episode, `steps` or `timesteps` may be those of that episode alone.
"""
COMMENT = "#% "
"""What a header may begin with, as numpy and gnuplot write it."""
_DECIMAL_COMMA = re.compile(r"^([+-]?\d*),(\d+(?:[eE][+-]?\d+)?)$")
STEP_COLUMNS = frozenset({*STEP_KEYS, *COUNT_COLUMNS, "epoch"})


def find_separator(line: str) -> str:
    """The most frequent separator of a line."""
    return max(SEPARATORS, key=line.count)


def split_cells(line: str, separator: str) -> list[str]:
    """The cells of a line; empty if it cannot be parsed.

    Between semicolons, the comma of a number is its decimal point.
    """
    try:
        cells = [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:
        return []
    if separator == ";":
        return [_DECIMAL_COMMA.sub(r"\1.\2", cell) for cell in cells]
    return cells


def header_names(line: str) -> list[str] | None:
    """The columns that a header line names; None if it is none."""
    return column_names(split_cells(line, find_separator(line)))


def column_names(cells: list[str]) -> list[str] | None:
    """The cells, if they name at least two columns, one of them a step; else None.

    A first column without a name is the index of a pandas table: the step of a metric.
    """
    if len(cells) < 2 or any(parse_number(cell) is not None for cell in cells):
        return None
    cells = [cells[0].lstrip(COMMENT), *cells[1:]]
    if not STEP_COLUMNS.intersection(map(str.lower, cells)):
        index, *others = cells
        is_table = index == "" and all(others) and any(map(infer_signal, others))
        return ["step", *others] if is_table else None
    return [cell.lower() if cell.lower() in STEP_COLUMNS else cell for cell in cells]
