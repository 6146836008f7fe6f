"""`sentinel compare`: runs or logs side by side, in the terminal, as JSON or as an HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sentinel.cli._options import complete_run, error_exit, exit_on, resolve_arguments
from sentinel.cli._run_sources import RUN_OR_LOG_HELP, open_runs
from sentinel.cli._terminal import print_json_line

_MIN_RUNS = 2


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
    if output is not None:
        from sentinel.cli.report import write_text
        from sentinel.web.report_page import render_report

        data = collect_report(opened)
        data["comparison"]["what_changed"] = json_safe(comparison["what_changed"])
        write_text("compare", render_report(data), output)
    if json:
        print_json_line(comparison)
    elif output is None:
        from sentinel.cli._comparison_tables import print_comparison

        print_comparison(comparison, directories)
