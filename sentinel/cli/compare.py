"""`sentinel compare`: runs or logs side by side, in the terminal, as JSON or as an HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentinel.cli._options import complete_run, error_exit, exit_on, resolve_arguments
from sentinel.cli._run_sources import RUN_OR_LOG_HELP, open_runs
from sentinel.cli._run_table import HEALTH_STYLES
from sentinel.cli._terminal import escape_unprintable as _clean
from sentinel.cli._terminal import print_json_line

if TYPE_CHECKING:
    from rich.table import Table

_MIN_RUNS = 2
_MAX_METRICS = 25
_MAX_CHANGES = 10
_MAX_SETTING_CHARS = 60


def compare(  # noqa: PLR0913, PLR0917 - the options of the command
    runs: Annotated[
        list[str],
        typer.Argument(
            help=RUN_OR_LOG_HELP,
            metavar="A B...",
            autocompletion=complete_run,
            callback=resolve_arguments,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the comparison as HTML.")
    ] = None,
    axis: Annotated[str, typer.Option(help="Axis of the curves: step, time or tokens.")] = "step",
    signal: Annotated[
        list[str] | None, typer.Option(help="Signal to compare, several times; by default all.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
    config: Annotated[
        Path | None, typer.Option(help="Settings file (sentinel.toml), to replay logs.")
    ] = None,
) -> None:
    """Compare runs: their results, what differs, and where the last one departs from the others.

    The runs before the last one are taken as good. With several of them, their spread is the band
    that the last one has to leave; with one, it comes from its own noise. What differs is ranked by
    how often such a difference came with such a departure in the runs of the home directory.

    Each metric shows the last value of a run, the mean of its last tenth, by which the best run is
    marked, its best value, and its value at the last point that all runs reached. With -o, one HTML
    file has the curves over each other and the report of each run.

    Exit status: 0 on success, 2 if a run or log cannot be read or the file cannot be written.
    """
    from sentinel.model.json_safe import json_safe
    from sentinel.report.compared_results import compared_results
    from sentinel.report.comparison import compare as compare_runs
    from sentinel.report.own_runs import own_runs
    from sentinel.report.run_report import collect_report
    from sentinel.report.what_changed import what_changed
    from sentinel.transport.paths import home_dir

    opened = open_runs("compare", runs, config)
    if len(opened) < _MIN_RUNS:
        raise error_exit("compare", "give at least two runs or logs.")
    with exit_on("compare", ValueError):
        comparison = compare_runs(opened, signals=signal or (), axis=axis)  # type: ignore[arg-type]
    names, directories = [run.name for run in opened], [run.directory for run in opened]
    own = own_runs(home_dir(), opened[-1].reader.metadata())
    comparison["what_changed"] = what_changed(opened, own)
    comparison["insight"] = compared_results(names, directories)
    data = collect_report(opened) if output is not None else None
    if data is not None:
        data["comparison"]["what_changed"] = json_safe(comparison["what_changed"])
    if data is not None and output is not None:
        from sentinel.cli.report import write_text
        from sentinel.web.report_page import render_report

        write_text("compare", render_report(data), output)
    if json:
        print_json_line(comparison)
    elif output is None:
        from rich.console import Console

        console = Console()
        for part in _tables(comparison):
            console.print(part, soft_wrap=isinstance(part, str))
        for line in _insight_lines(comparison["insight"], directories, names):
            console.print(line, markup=False, highlight=False)
        if comparison["same_settings"]:
            count = comparison["same_settings"]
            console.print(f"{count} setting{'s are' if count > 1 else ' is'} equal.", style="dim")


def _tables(comparison: dict[str, Any]) -> Iterator[Table | str]:
    """The comparison as tables with a column per run, and what the cells of metrics are."""
    from rich.text import Text

    from sentinel.report.markdown import has_common_value

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
    from rich.markup import escape
    from rich.text import Text

    from sentinel.report.markdown import departure_rows, difference_rows

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


def _insight_lines(
    insight: dict[str, Any] | None, directories: Sequence[Path | None], names: Sequence[str]
) -> Iterator[str]:
    """The text of the newest result of each kind, a line for each run that has any."""
    from sentinel.store.artifact import ArtifactError, load_artifact
    from sentinel.store.result_text import result_text

    results = insight["results"] if insight else [()] * len(names)
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
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE, title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for name in names:
        table.add_column(escape(name), overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _run_rows(runs: Sequence[dict[str, Any]]) -> Iterator[Sequence[Any]]:
    from rich.text import Text

    from sentinel.report.markdown import run_rows

    for name, texts in run_rows(runs):
        styles = HEALTH_STYLES if name == "Health" else {}
        yield [name, *(Text(_clean(text), styles.get(text, "")) for text in texts)]


def _metric_row(metric: dict[str, Any]) -> Sequence[Any]:
    from rich.text import Text

    from sentinel.report.markdown import has_common_value, value_text

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
    from rich.text import Text

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
