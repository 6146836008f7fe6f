"""Tables of a comparison of runs: results, what changed, problems and settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sentinel.cli._run_table import HEALTH_STYLES
from sentinel.cli._terminal import escape_unprintable as _clean
from sentinel.report.markdown import (
    departure_rows,
    difference_rows,
    has_common_value,
    run_rows,
    value_text,
)
from sentinel.store.artifact import ArtifactError, load_artifact
from sentinel.store.result_text import result_text

_MAX_METRICS = 25
_MAX_CHANGES = 10
_MAX_SETTING_CHARS = 60


def print_comparison(comparison: dict[str, Any], directories: Sequence[Path | None]) -> None:
    """Print a comparison of runs, whose directories are given; None for a log."""
    console = Console()
    for part in _tables(comparison):
        console.print(part, soft_wrap=isinstance(part, str))
    for line in _insight_lines(comparison, directories):
        console.print(line, markup=False, highlight=False)
    if comparison["same_settings"]:
        count = comparison["same_settings"]
        console.print(f"{count} setting{'s are' if count > 1 else ' is'} equal.", style="dim")


def _tables(comparison: dict[str, Any]) -> Iterator[Table | str]:
    """The comparison as tables with a column per run, and what the cells of metrics are."""
    runs = comparison["runs"]
    names = [_clean(run["name"]) for run in runs]
    yield _table("Runs", names, _run_rows(runs))
    yield from _change_tables(comparison["what_changed"])
    if comparison["metrics"]:
        rows = (_metric_row(metric) for metric in comparison["metrics"][:_MAX_METRICS])
        has_common = any(map(has_common_value, comparison["metrics"][:_MAX_METRICS]))
        yield _table("Metrics", names, rows)
        # Not in the title, which is as narrow as the table.
        common = ", at the last common point" if has_common else ""
        yield f"Each cell: last, in the last tenth (the best run in bold), best{common}.\n"
    if comparison["problems"]:
        rows = (
            [
                Text(_clean(row["title"])),
                *(_problem_cell(cell) for cell in row["cells"]),
            ]
            for row in comparison["problems"]
        )
        yield _table("Problems: step at which they began", names, rows)
    if comparison["settings"]:
        rows = (
            [
                Text(_clean(row["name"])),
                *(Text(_setting(value)) for value in row["values"]),
            ]
            for row in comparison["settings"]
        )
        yield _table("Settings that differ", names, rows)


def _change_tables(changed: dict[str, Any]) -> Iterator[Table | str]:
    """Where the last run departs, and what differs, the likeliest cause first."""
    yield f"[bold]What changed[/bold]\n{escape(_clean(changed['text']))}"
    parts = (
        ("Departures", ("Step", "Value", "Band"), departure_rows(changed)),
        ("Differences, the likeliest cause first", ("Good", "Bad", "Own runs that departed"),
         difference_rows(changed)),
    )  # fmt: skip
    for title, columns, rows in parts:
        if changed["departures"] and rows:
            cells = ([Text(_clean(_cut(each))) for each in row] for row in rows[:_MAX_CHANGES])
            yield _table(title, columns, cells)
    if changed["conclusion"]:
        yield f"{escape(_clean(changed['conclusion']))}\n"


def _insight_lines(comparison: dict[str, Any], directories: Sequence[Path | None]) -> Iterator[str]:
    """The text of the newest result of each kind, a line for each run that has any."""
    if comparison["insight"] is None:
        return
    names = [run["name"] for run in comparison["runs"]]
    results = comparison["insight"]["results"]
    for name, directory, headers in zip(names, directories, results, strict=True):
        newest = {header["kind"]: header["id"] for header in headers}
        texts = []
        for kind, artifact_id in newest.items():
            try:
                data = load_artifact(directory or "", artifact_id)["data"]
            except ArtifactError:
                continue
            texts.append(result_text(kind, data))
        if text := " ".join(filter(None, texts)):
            yield _clean(f"{name}: {text}")


def _table(title: str, names: Sequence[str], rows: Iterator[Sequence[Any]]) -> Table:
    table = Table(box=SIMPLE, title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for name in names:
        table.add_column(escape(name), overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _run_rows(runs: Sequence[dict[str, Any]]) -> Iterator[Sequence[Any]]:
    for name, texts in run_rows(runs):
        styles = HEALTH_STYLES if name == "Health" else {}
        yield [name, *(Text(_clean(text), styles.get(text, "")) for text in texts)]


def _metric_row(metric: dict[str, Any]) -> Sequence[Any]:
    has_common = has_common_value(metric)
    unit = f" ({metric['unit']})" if metric["unit"] else ""
    cells = []
    for index, value in enumerate(metric["values"]):
        if value is None:
            cells.append(Text("-"))
            continue
        cell = Text(f"{value_text(value['last'])}, ")
        cell.append(value_text(value["final"]), "bold green" if index == metric["best_run"] else "")
        if value["best"] is not None or has_common:
            cell.append(f", {value_text(value['best'])}")
        if has_common:
            cell.append(f", {value_text(value['at_common'])}")
        cells.append(cell)
    return [Text(f"{_clean(metric['label'])}{unit}"), *cells]


def _problem_cell(cases: Sequence[dict[str, Any]]) -> Any:
    cell = Text()
    for case in cases:
        if cell:
            cell.append(", ")
        cell.append(f"{case['onset_step']:,}", HEALTH_STYLES.get(case["severity"], ""))
    return cell


def _setting(value: Any) -> str:
    if value is None:
        return "-"
    return _clean(_cut(f"{value:g}" if isinstance(value, float) else str(value)))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SETTING_CHARS else f"{text[:_MAX_SETTING_CHARS]}…"
