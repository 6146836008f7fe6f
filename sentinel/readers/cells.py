"""Cells of one line of a table, and the detection of its header line."""

from __future__ import annotations

import csv

from sentinel.readers.rows import STEP_KEYS, parse_number

SEPARATORS = (",", "\t", ";")
COUNT_COLUMNS = (
    "steps",
    "total/steps",
    "misc/total_timesteps",
    "timesteps",
    "totalenvinteracts",
    "total/episodes",
    "episode",
    "episodes",
    "total/epochs",
    "epochs",
)
"""Columns that count the rows of a table where it has none of STEP_KEYS, best first."""
STEP_COLUMNS = frozenset({*STEP_KEYS, *COUNT_COLUMNS, "epoch"})


def split_cells(line: str) -> list[str]:
    """The cells between the most frequent separator; empty if the line cannot be parsed."""
    separator = max(SEPARATORS, key=line.count)
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:
        return []


def column_names(cells: list[str]) -> list[str] | None:
    """The cells, if they name at least two columns, one of them a step; else None."""
    if len(cells) < 2 or not STEP_COLUMNS.intersection(map(str.lower, cells)):
        return None
    if any(parse_number(cell) is not None for cell in cells):
        return None
    return [cell.lower() if cell.lower() in STEP_COLUMNS else cell for cell in cells]
