"""Runs of the home directory as a table for a terminal, or as lines for programs and files."""

from __future__ import annotations

import json as jsonlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sentinel.cli._sparkline import sparkline
from sentinel.cli._terminal import can_print, escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sentinel.store.run_summary import RunIndex

CURVE_WIDTH = 16
MAX_CASE_CHARS = 60
HEALTH_STYLES = {"critical": "bold red", "warning": "yellow", "ok": "green", "unknown": "dim"}

_COLUMNS = (
    (0, "Run", "run"),
    (0, "Health", "health"),
    (46, "State", "state"),
    (0, "Step", "step"),
    (34, "Age", "age"),
    (72, "Curve", "curve"),
    (96, "Worst case", "case"),
    (128, "Framework", "framework"),
    (128, "Host", "host"),
)
"""Width of a terminal from which on a column is shown, its heading and its key."""

Row = dict[str, Any]


def make_index() -> RunIndex:
    """The index of the runs of the home directory."""
    from sentinel.metrics.stored_state import stored_summary
    from sentinel.store.run_summary import RunIndex

    return RunIndex(stored_summary)


def read_rows(
    filter_text: str, index: RunIndex | None = None, max_completed: int | None = None
) -> list[Row]:
    """The summaries of the runs that the filter selects, the newest first.

    The first time, a run of an earlier version is read from its database, with a progress bar; at
    most `max_completed` of them, the newest.
    """
    from sentinel.cli._progress import ProgressBar
    from sentinel.web.run_list import RunQuery, query_runs

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

    columns = [each for each in _COLUMNS if console.width >= each[0]]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), expand=False)
    for _, heading, key in columns:
        is_number = key in {"step", "age"}
        can_shrink = key in {"run", "case"}
        table.add_column(
            heading,
            justify="right" if is_number else "left",
            no_wrap=True,
            overflow="ellipsis" if can_shrink else "crop",
            ratio=None,
            min_width=8 if can_shrink else None,
        )
    ascii_only = console.options.ascii_only
    for row in rows:
        cells = _cells(row, ascii_only=ascii_only)
        style = HEALTH_STYLES.get(cells["health"], "")
        styles = {"health": style, "case": style, "state": "" if row["is_live"] else "dim"}
        table.add_row(*(Text(cells[key], style=styles.get(key, "")) for _, _, key in columns))
    return table


def run_lines(rows: Sequence[Row]) -> Iterator[str]:
    """A line per run, its parts separated by two spaces or more."""
    keys = [key for _, _, key in _COLUMNS]
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
        "age": format_duration(row["age"], parts=1),
        "curve": sparkline(spark.get("values") or [], CURVE_WIDTH, ascii_only=ascii_only),
        "case": str(worst.get("subject") or "-")[:MAX_CASE_CHARS],
        "framework": str(row.get("framework") or "-"),
        "host": str(row.get("host") or "-"),
    }
    return {key: escape_unprintable(text) for key, text in texts.items()}
