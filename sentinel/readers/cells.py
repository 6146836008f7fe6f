"""Cells: one line of a table taken apart, and whether it is one of names."""

from __future__ import annotations

import csv

from sentinel.readers.rows import STEP_KEYS

SEPARATORS = (",", "\t", ";")
STEPS = frozenset({*STEP_KEYS, "steps", "epoch"})


def cells(line: str) -> list[str]:
    """What stands between the separators; nothing if the line cannot be taken apart."""
    separator = max(SEPARATORS, key=line.count)
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:
        return []


def names(found: list[str]) -> list[str] | None:
    """The cells, if they are names of at least two columns, one of them a step."""
    if len(found) < 2 or not STEPS.intersection(map(str.lower, found)):
        return None
    if any(number(cell) is not None for cell in found):
        return None
    return [cell.lower() if cell.lower() in STEPS else cell for cell in found]


def number(cell: str) -> float | None:
    """The number in a cell, if there is one."""
    try:
        return float(cell)
    except ValueError:
        return None
