"""Cells: one line of a table taken apart, and whether it is one of names."""

from __future__ import annotations

import csv

from sentinel.readers.rows import STEP_KEYS

SEPARATORS = (",", "\t", ";")
STEP_COLUMNS = frozenset({*STEP_KEYS, "steps", "epoch"})


def split_cells(line: str) -> list[str]:
    """What stands between the separators; nothing if the line cannot be taken apart."""
    separator = max(SEPARATORS, key=line.count)
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:
        return []


def column_names(cells: list[str]) -> list[str] | None:
    """The cells, if they are names of at least two columns, one of them a step."""
    if len(cells) < 2 or not STEP_COLUMNS.intersection(map(str.lower, cells)):
        return None
    if any(parse_number(cell) is not None for cell in cells):
        return None
    return [cell.lower() if cell.lower() in STEP_COLUMNS else cell for cell in cells]


def parse_number(cell: str) -> float | None:
    """The number in a cell, if there is one."""
    try:
        return float(cell)
    except ValueError:
        return None
