"""Tables in console output: a header line with the names of the columns, and lines of cells.

Columns are separated by spaces, tabs, or the borders that rich, tabulate and Markdown draw.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sentinel.readers.cells import COMMENT, STEP_COLUMNS

MIN_COLUMNS = 3
MAX_COLUMNS = 256
BORDERS = "|│┃"

_BAR = re.compile(r"\d{1,3}%(?:\||\s)")
_WIDE_SPACE = re.compile(r"\t|\s{2,}")
_NAME = re.compile(r"[A-Za-z_][^:=]{0,79}")
_CELL = re.compile(
    r"[-+]?(?:\d[\d,]{0,40}+(?:\.\d{0,40}+)?|\.\d{1,40}+|nan|inf)(?:e[-+]?\d{1,4}+)?"
    r"(?:/\d{1,15}|[%A-Za-z]{1,2})?",
    re.IGNORECASE,
)


@dataclass
class ConsoleTable:
    """The table that the last lines of a log belong to; `names` are its columns, empty if none."""

    names: list[str] = field(default_factory=list)

    def to_pairs(self, text: str) -> str | None:
        """The cells of a line as `name: cell` pairs; None if it is no line of a table.

        A header or any other line ends the table before it, except a blank one.

        >>> table = ConsoleTable()
        >>> table.to_pairs("Iteration  Loss   Return"), table.to_pairs("50         0.25   1e3")
        (None, 'Iteration: 50 | Loss: 0.25 | Return: 1e3')
        """
        if len(text) > 80 * MAX_COLUMNS or not text.strip():
            return None
        # The last column of a row of Ultralytics is followed by the bar of the epoch.
        bar = _BAR.search(text) if "%" in text else None
        before, after = (text[: bar.start()], text[bar.start() :]) if bar else (text, "")
        before = before.lstrip(COMMENT)
        if not self.names and (":" in before or "=" in before):
            return None
        cells = _split(before)
        if len(cells) < max(MIN_COLUMNS, len(self.names)):
            # Ultralytics and others separate some columns by one space.
            cells = before.strip().rstrip(":").split()
        if self.names and len(cells) == len(self.names):
            pairs = [
                f"{name}: {cell}"
                for name, cell in zip(self.names, cells, strict=True)
                if _CELL.fullmatch(cell)
            ]
            if 2 * len(pairs) > len(cells):
                return " | ".join([*pairs, *([after] if after else [])])
        self.names = cells if _are_names(cells) else []
        return None


def _split(text: str) -> list[str]:
    text = text.strip().rstrip(":")
    if text[:1] and text[0] in BORDERS:
        return [cell.strip() for cell in text.strip(BORDERS).split(text[0])]
    return [cell.strip() for cell in _WIDE_SPACE.split(text) if cell]


def _are_names(cells: list[str]) -> bool:
    """Whether they name columns, one of them a step or a loss."""
    return (
        MIN_COLUMNS <= len(cells) <= MAX_COLUMNS
        and len({*cells}) == len(cells)
        and all(_NAME.fullmatch(cell) for cell in cells)
        and any(cell.lower() in STEP_COLUMNS or "loss" in cell.lower() for cell in cells)
    )
