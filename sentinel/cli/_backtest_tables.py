"""What a backtest found as tables of the terminal."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sentinel.backtest.tables import (
    ResultTable,
    notes,
    recommendation_notes,
    recommendation_title,
    result_tables,
)
from sentinel.cli._replay_tables import SEVERITY_STYLES
from sentinel.cli._terminal import escape_unprintable as _clean

MIN_FIRST_WIDTH = 20
MAX_ROWS = 20
"""Rows of each table, and notes; all are on the page and in the output of --json."""
_STYLES = {severity.value: style for severity, style in SEVERITY_STYLES.items()}
_WHERE = "in the output of --json and on the page of --output"


def print_backtest(summary: dict[str, Any]) -> None:
    """Settings, runs, what other settings change, what is left out, and the recommendation."""
    console = Console()
    for table in result_tables(summary):
        if not table.rows:
            console.print(Text(f"{_clean(table.empty)}\n"))
            continue
        console.print(_format(table))
        if not table.left_out and len(table.rows) > MAX_ROWS:
            _print_hidden(console, len(table.rows), table.noun)
    lines = [*notes(summary)]
    for line in lines[:MAX_ROWS]:
        console.print(Text(_clean(line)), style="dim")
    _print_hidden(console, len(lines), "notes")
    if (made := summary["recommendation"]) is not None:
        title = _clean(recommendation_title(made))
        console.print(Text.assemble("\n", (title, "bold"), " ", _clean(made["reason"])))
        if made["toml"]:
            print(f"\n{made['toml']}\n")
        for line in recommendation_notes(made):
            console.print(Text(_clean(line)))


def _format(source: ResultTable) -> Table:
    table = Table(box=SIMPLE, title=_clean(source.title), title_justify="left", title_style="bold")
    for number, column in enumerate(source.columns):
        min_width = None if number else MIN_FIRST_WIDTH
        table.add_column(_clean(column), overflow="fold", min_width=min_width)
    for row in source.rows[:MAX_ROWS]:
        styles = [_STYLES.get(row.severity, "") if c == "Severity" else "" for c in source.columns]
        table.add_row(*(Text(_clean(c), s) for c, s in zip(row.cells, styles, strict=True)))
    table.caption = source.caption or _hidden_rows(source)
    return table


def _hidden_rows(source: ResultTable) -> str:
    """How many rows of each kind are not shown."""
    if not source.left_out:
        return ""
    more = Counter(row.kind for row in source.rows[MAX_ROWS:]) + source.left_out
    return ", ".join(f"{count} more {kind}" for kind, count in more.items())


def _print_hidden(console: Console, count: int, noun: str) -> None:
    if count > MAX_ROWS:
        console.print(f"{count - MAX_ROWS} more {noun} are {_WHERE}.\n", style="dim")
