"""Runs of the home directory as a table for a terminal, or as lines for programs and files."""

from __future__ import annotations

import json as jsonlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sentinel.cli._sparkline import sparkline
from sentinel.cli._terminal import can_print, escape_unprintable

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from sentinel.store.run_summary import RunIndex

CURVE_WIDTH = 16
MAX_CASE_CHARS = 60
MAX_SIGNAL_CHARS = 16
HEALTH_STYLES = {
    "critical": "bold red",
    "ended_badly": "bold red",
    "warning": "yellow",
    "healthy": "green",
    "ended_well": "green",
    "unknown": "dim",
}

_HEADINGS = {
    "run": "Run",
    "health": "Health",
    "case": "Worst case",
    "state": "State",
    "step": "Step",
    "age": "Age",
    "curve": "Curve",
    "framework": "Framework",
    "host": "Host",
}
_DROPPED = ("host", "framework", "curve", "state", "age", "step", "health")
"""Columns that a narrow terminal lacks, the first of them first: what is wrong is shown longest."""
_MIN_WIDTHS = {"run": 16, "case": 30}
"""Characters of the columns that are cut before others are left out."""
_RUN_SHARE = 0.4
"""Most of the width of both that names of runs take from the cases."""

Row = dict[str, Any]


def make_index() -> RunIndex:
    """The index of the runs of the home directory."""
    from sentinel.store.run_summary import RunIndex

    return RunIndex(_stored_summary)


def _stored_summary(run: str, database: Path) -> dict[str, Any]:
    """The summary of a run that stored none; few homes have one."""
    from sentinel.metrics.stored_state import stored_summary

    return stored_summary(run, database)


def read_rows(
    filter_text: str, index: RunIndex | None = None, max_completed: int | None = None
) -> list[Row]:
    """The summaries of the runs that the filter selects, the newest first.

    The first time, a run of an earlier version is read from its database, with a progress bar; at
    most `max_completed` of them, the newest.
    """
    from sentinel.cli._progress import ProgressBar
    from sentinel.web.home.run_list import RunQuery, query_runs

    index = index or make_index()
    index.refresh()
    entries = index.entries()
    total = sum(not each.is_complete for each in entries)
    if max_completed is not None:
        total = min(total, max_completed)
    with ProgressBar("Reading runs") as bar:
        done = 0
        while done < total and index.complete_one():
            done += 1
            bar.update(min(done / total, 1.0) if total else None, f"{done} of {total}")
    query = RunQuery(filter_text, limit=max(len(entries), 1))
    rows: list[Row] = query_runs(index.entries(), query, time.time())["runs"]
    return rows


def print_rows(rows: Sequence[Row], *, json: bool) -> None:
    """Print the runs: as JSON, as a table on a terminal, else as lines that are never cut."""
    if json:
        for row in rows:
            print(jsonlib.dumps(row))
        return
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        console.print(run_table(rows, console))
    else:
        for line in run_lines(rows):
            print(line)
    if not rows:
        print("No run matches.")


def run_table(rows: Sequence[Row], console: Console) -> Table:
    """The table, with as many columns as the terminal is wide."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    ascii_only = console.options.ascii_only
    cells = [_cells(row, ascii_only=ascii_only) for row in rows]
    widths = _fit_widths(cells, console.width)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), expand=False)
    for key, width in widths.items():
        table.add_column(
            _HEADINGS[key],
            justify="right" if key in {"step", "age"} else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=width,
        )
    for row, texts in zip(rows, cells, strict=True):
        style = HEALTH_STYLES.get(texts["health"], "")
        styles = {"health": style, "case": style, "state": "" if row["is_live"] else "dim"}
        table.add_row(*(Text(texts[key], style=styles.get(key, "")) for key in widths))
    return table


def _fit_widths(cells: Sequence[dict[str, str]], width: int) -> dict[str, int]:
    """The columns that a terminal of that width has room for, in their order, and their widths."""
    from rich.cells import cell_len

    longest = {
        key: max(cell_len(text) for text in (heading, *(each[key] for each in cells)))
        for key, heading in _HEADINGS.items()
    }

    def room(keys: Iterable[str]) -> int:
        """What is left for run and case. The frame takes two characters a column, and one more."""
        taken = [2 + (0 if key in _MIN_WIDTHS else longest[key]) for key in keys]
        return width - sum(taken) - 1

    least = sum(min(longest[key], minimum) for key, minimum in _MIN_WIDTHS.items())
    keys = [*_HEADINGS]
    for dropped in _DROPPED:
        if room(keys) >= least:
            break
        keys.remove(dropped)
    left = max(room(keys), 2)
    run = min(longest["run"], max(left - longest["case"], int(_RUN_SHARE * left)))
    shown = {"run": run, "case": max(min(longest["case"], left - run), 1)}
    return {key: shown.get(key, longest[key]) for key in keys}


def run_lines(rows: Sequence[Row]) -> Iterator[str]:
    """A line per run, its parts separated by two spaces or more."""
    keys = [*_HEADINGS]
    cells = [_cells(row, ascii_only=not can_print("▁")) for row in rows]
    widths = {key: max((len(each[key]) for each in cells), default=0) for key in keys}
    for each in cells:
        yield "  ".join(f"{each[key]:<{widths[key]}}" for key in keys).rstrip()


def _cells(row: Row, *, ascii_only: bool) -> dict[str, str]:
    from sentinel.model.quantity_text import format_duration

    worst, spark = row.get("worst_case") or {}, row.get("sparkline") or {}
    step = row.get("step")
    texts = {
        "run": row["run"],
        "health": row["health"],
        "state": row["state"],
        "step": "-" if step is None else str(step),
        "age": "-" if row["age"] is None else format_duration(row["age"], parts=1),
        "curve": _curve_text(spark, ascii_only=ascii_only),
        "case": str(worst.get("subject") or "-")[:MAX_CASE_CHARS],
        "framework": str(row.get("framework") or "-"),
        "host": str(row.get("host") or "-"),
    }
    return {key: escape_unprintable(text) for key, text in texts.items()}


def _curve_text(spark: dict[str, Any], *, ascii_only: bool) -> str:
    """The name of a signal and its curve; a dash without values."""
    curve = sparkline(spark.get("values") or [], CURVE_WIDTH, ascii_only=ascii_only)
    return f"{str(spark.get('name', ''))[:MAX_SIGNAL_CHARS]} {curve}" if curve else "-"
