"""`sentinel backtest`: replay runs with other settings, and recommend some."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sentinel.cli._options import complete_run, error_exit, resolve_arguments, settings_environ
from sentinel.cli._terminal import print_json_line

if TYPE_CHECKING:
    from sentinel.backtest.backtest import Backtest
    from sentinel.backtest.run_sources import FoundRuns, SkippedRun
    from sentinel.backtest.variants import Variant

DEFAULT_BUDGET = 0.1
MAX_REASONS = 3
"""Runs of which it is stated why they cannot be replayed if none can."""


def backtest(  # noqa: PLR0913, PLR0917 - the options of the command
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Run ids, logs, or folders of these. [default: all stored runs that ended]",
            metavar="[RUNS]...",
            autocompletion=complete_run,
            callback=lambda runs: resolve_arguments(runs or []),
            show_default=False,
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Another setting: detectors.kl_blowup.limit=2. Several are applied together.",
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,C",
            help="Values of a setting, each to be tried; of several settings, all combinations.",
        ),
    ] = None,
    healthy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN",
            help="Name of a run in which nothing was wrong, or a pattern such as 'good-*'.",
        ),
    ] = None,
    budget: Annotated[
        float, typer.Option(help="False notifications per run day that are acceptable.")
    ] = DEFAULT_BUDGET,
    step_seconds: Annotated[
        float | None,
        typer.Option(help="Seconds that a step takes, of logs that hold no times."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Replays at a time.", show_default="one per core"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write the result as a page, an HTML file."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings file (sentinel.toml): the current settings.")
    ] = None,
) -> None:
    """Replay runs with other settings: what they would have sent, and what to set.

    Shows the notifications of each run with the current settings and with others, and which
    incidents appear, go or move. If the healthy runs are named, it recommends the settings that
    find the most in the other runs within the budget of false notifications, or states how many
    runs that needs. Nothing is sent or stored, and no run is changed.

    Exit status: 0, also without a recommendation; 2 if the options are invalid or no run can be
    replayed.
    """
    from sentinel.backtest.backtest import match_names
    from sentinel.backtest.recommendation import recommend
    from sentinel.backtest.run_sources import UnknownRunError, find_runs
    from sentinel.backtest.summary import summarize
    from sentinel.backtest.variants import make_variants
    from sentinel.config.settings import ConfigError

    for name, number in {"--budget": budget, "--step-seconds": step_seconds}.items():
        if number is not None and not 0 < number < float("inf"):
            raise error_exit("backtest", f"{name}: give a number above 0.")
    try:
        variants = make_variants(assignments or (), grid or (), settings_environ(config))
        found = find_runs(runs or (), time.time())
    except ConfigError as error:
        raise error_exit("backtest", str(error)) from None
    except UnknownRunError as error:
        from sentinel.store.run_names import unknown_run_hint

        raise error_exit("backtest", f"{error} {unknown_run_hint(error.argument)}") from None
    if not found.runs:
        raise _nothing_replayed(found.skipped, are_named=bool(runs))
    try:
        names = match_names(healthy or (), [run.name for run in found.runs])
    except ValueError as error:
        raise error_exit("backtest", f"--healthy: {error}") from None
    result = _replay(found, variants, names, step_seconds, jobs)
    if not result.runs:
        raise _nothing_replayed(result.skipped, are_named=bool(runs))
    has_choice = len(result.variants) > 1
    summary = summarize(result, recommend(result, budget) if has_choice else None, budget)
    if output is not None:
        from sentinel.cli.report import write_text
        from sentinel.web.backtest_page import render_backtest_page

        write_text("backtest", render_backtest_page(summary), output)
    if json:
        print_json_line(summary)
    else:
        from sentinel.cli._backtest_tables import print_backtest

        print_backtest(summary)


def _nothing_replayed(skipped: Sequence[SkippedRun], *, are_named: bool) -> typer.Exit:
    from sentinel.transport.paths import home_dir

    where = "of the given runs" if are_named else f"of the runs under {home_dir()} that ended"
    reasons = "; ".join(f"{each.name}: {each.reason}" for each in skipped[:MAX_REASONS])
    if len(skipped) > MAX_REASONS:
        reasons += f"; and {len(skipped) - MAX_REASONS} more"
    text = f"none {where} can be replayed"
    return error_exit("backtest", f"{text}: {reasons}." if reasons else f"{text}.")


def _replay(
    found: FoundRuns,
    variants: Sequence[Variant],
    healthy: set[str],
    step_seconds: float | None,
    jobs: int | None,
) -> Backtest:
    from sentinel.backtest.backtest import run_backtest
    from sentinel.cli._progress import ProgressBar
    from sentinel.pipeline.parallel import available_cores

    with ProgressBar(f"Replaying {len(found.runs)} runs") as bar:
        return run_backtest(
            found,
            variants,
            healthy=healthy,
            step_seconds=step_seconds,
            jobs=jobs or available_cores(),
            progress=lambda done, total: bar.update(done / total, f"{done} of {total}"),
        )
