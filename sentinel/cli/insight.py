"""`sentinel insight`: pictures and tables that are worked out from runs and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentinel.cli._insight_surface import surface, write_result
from sentinel.cli._options import JsonOption, complete_run, error_exit, exit_on, resolve_run
from sentinel.cli._terminal import escape_unprintable, print_json_line

if TYPE_CHECKING:
    from rich.table import Table

    from sentinel.insight.importance.importance import Importance
    from sentinel.insight.trajectory.trajectory import Trajectory

app = typer.Typer(no_args_is_help=True)
app.command()(surface)

OutputOption = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", help="Write the result as one HTML file, or a figure (.pdf, .svg, .png)."
    ),
]

_BAR_CHARS = 10
_DISTANCES = (
    "Distances to the initial and the reference weights and along the path are relative to the "
    "norm of the initial weights."
)


@app.callback()
def insight() -> None:
    """Work out pictures and tables from runs and checkpoints."""


@app.command()
def importance(  # noqa: PLR0913, PLR0917 - the options of the command
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Run ids, logs, tables (.json, .jsonl, .csv), or folders of them; by default, all "
            "runs of the home directory.",
            metavar="[RUNS]...",
            autocompletion=complete_run,
        ),
    ] = None,
    outcome: Annotated[
        str,
        typer.Option(help="Signal or column that is explained; by default, the reward or loss."),
    ] = "",
    statistic: Annotated[
        str, typer.Option(help="Value of the signal: last, best, or mean of the last tenth.")
    ] = "last",
    better: Annotated[
        str, typer.Option(help="Which outcome is better: lower or higher; known for most signals.")
    ] = "",
    failed: Annotated[
        str, typer.Option(help="Runs that failed or ended with NaN: drop, or count as worst.")
    ] = "drop",
    exclude: Annotated[
        list[str] | None, typer.Option(help="Setting, or pattern of settings, that is left out.")
    ] = None,
    filter_text: Annotated[
        str, typer.Option("--filter", help="Of the home directory: words, tag:x or project:y.")
    ] = "",
    seed: Annotated[int, typer.Option(help="Seed of the forests and bootstrap samples.")] = 0,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Show which settings explain an outcome over many runs.

    A random forest predicts the outcome from the settings. Its importance is how much worse it
    does on runs that it has not seen once the setting is shuffled, as a share of the variance of
    the outcome; the correlation is that of ranks.

    Exit status: 0 on success, 2 if the runs cannot be read or compared.
    """
    from dataclasses import replace

    from sentinel.cli._progress import ProgressBar
    from sentinel.insight.importance.importance import importance as explain
    from sentinel.insight.importance.run_collection import collect_runs

    if filter_text and runs:
        text = "--filter chooses among all runs: give it or RUNS."
        raise error_exit("insight importance", text)
    sources = [*map(resolve_run, runs)] if runs else _filtered_runs(filter_text)
    with exit_on("insight importance", ValueError, ImportError, OSError):
        with ProgressBar("Reading runs") as bar:
            found = collect_runs(
                sources,
                outcome,
                statistic=statistic,  # type: ignore[arg-type]
                better=better,
                progress=lambda done, total: bar.update(done / total, f"{done} of {total}"),
            )
        with ProgressBar("Fitting forests") as bar:
            result = explain(
                found.runs,
                found.outcome,
                better=better,
                failed=failed,  # type: ignore[arg-type]
                exclude=exclude or (),
                seed=seed,
                progress=bar.update,
            )
    result = replace(result, note=[*result.note, *found.notes])
    if output is not None:
        title = f"What explains {result.outcome}"
        write_result("insight importance", result, output, title)
    if json:
        print_json_line(result.to_json())
    elif output is None:
        _print_importance(result)


def _filtered_runs(filter_text: str) -> list[str]:
    """The ids of the runs that the filter selects; empty, which stands for all, without one."""
    from sentinel.cli._run_table import read_rows

    rows = read_rows(filter_text) if filter_text else []
    if filter_text and not rows:
        raise error_exit("insight importance", f"no run matches {filter_text!r}.")
    return [str(row["run"]) for row in rows]


def _print_importance(result: Importance) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    console.print(_importance_table(result))
    if result.score is not None:
        score = result.score
        console.print(
            f"{result.runs} runs. R2 of the forest on held-out runs: {score['r2']:.2f} "
            f"({score['low']:.2f} to {score['high']:.2f}). Intervals are at 95 %.",
            highlight=False,
            markup=False,
        )
    for note in result.note:
        console.print(Text(escape_unprintable(note)))
    if result.constant:
        names = ", ".join(each["name"] for each in result.constant)
        console.print(Text(escape_unprintable(f"Equal in all runs: {names}."), "dim"))


def _importance_table(result: Importance) -> Table:
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=SIMPLE,
        title=escape_unprintable(f"What explains {result.outcome}"),
        title_justify="left",
        title_style="bold",
    )
    table.add_column("Setting", overflow="fold")
    table.add_column("Importance", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("Rank correlation", no_wrap=True)
    for row in result.settings:
        names = ", ".join([row["name"], *row["same_as"]])
        share = min(max(row["importance"] or 0.0, 0.0), 1.0)
        table.add_row(
            Text(escape_unprintable(names)),
            _estimate(row, "importance", "low", "high"),
            "█" * round(_BAR_CHARS * share),
            _estimate(row, "correlation", "correlation_low", "correlation_high"),
        )
    return table


def _estimate(row: dict[str, Any], name: str, low: str, high: str) -> str:
    """A value with its 95 % interval."""
    if row[name] is None:
        return "-"
    # Rounded first, and without a negative zero.
    value, low_value, high_value = (round(row[key], 2) + 0.0 for key in (name, low, high))
    return f"{value:5.2f} ({low_value:.2f} to {high_value:.2f})"


@app.command()
def trajectory(  # noqa: PLR0913, PLR0917 - the options of the command
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Runs that recorded their weights, folders of checkpoints, or the checkpoints of "
            "one run.",
            metavar="RUN_OR_CHECKPOINTS...",
            autocompletion=complete_run,
        ),
    ],
    parameters: Annotated[
        list[str] | None,
        typer.Option(help="Name or pattern of the weights that are compared, such as '*lora*'."),
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Checkpoint whose distance is measured too.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the result.")] = "",
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Show which way the weights of runs move, in one plane.

    Each folder of checkpoints, and each run that recorded its weights, is one path; checkpoints
    given one by one are one path. Formats: .safetensors, alone, in shards or as PEFT adapter, and
    files of torch.save, read with weights_only=True.

    Exit status: 0 on success, 2 if a source cannot be read, or they cannot be compared.
    """
    from sentinel.cli._progress import ProgressBar
    from sentinel.insight.trajectory.trajectory import trajectory as compare_paths

    errors = (ValueError, ImportError, OSError)
    with exit_on("insight trajectory", *errors), ProgressBar("Comparing weights") as bar:
        result = compare_paths(
            [_recorded_run(each) or each for each in sources],
            parameters=parameters or None,
            reference=reference,
            name=name,
            progress=bar.update,
        )
    if output is not None:
        write_result("insight trajectory", result, output)
    if json:
        print_json_line(result.to_json())
    elif output is None:
        _print_trajectory(result)


def _recorded_run(argument: str) -> Trajectory | None:
    """The newest trajectory that a run stored; None if the argument is no run.

    Raises ValueError if the run has none.
    """
    from dataclasses import replace

    from sentinel.insight.trajectory.trajectory import Trajectory
    from sentinel.store.artifact import ArtifactError, list_artifacts, load_artifact
    from sentinel.transport.paths import RunIdError, current_run_dir

    run = resolve_run(argument)
    try:
        directory = current_run_dir(run)
    except RunIdError:
        # A path is no run id.
        return None
    if Path(argument).exists() or not directory.is_dir():
        return None
    stored = [each for each in list_artifacts(directory) if each["kind"] == "trajectory"]
    if not stored:
        raise ValueError(
            f"The run {run} has no trajectory: record one with sentinel.insight.TrajectoryRecorder."
        )
    try:
        data = load_artifact(directory, stored[-1]["id"])["data"]
    except ArtifactError as error:
        raise ValueError(str(error)) from None
    return replace(Trajectory.from_json(data), name=run)


def _print_trajectory(result: Trajectory) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE, title="Paths of the weights", title_justify="left")
    table.add_column("Run", overflow="fold", min_width=12)
    for title in ("Steps", "Initial", "Reference", "Travelled", "Straight", "Loss"):
        table.add_column(title, no_wrap=True)
    for run in result.runs:
        steps = run["steps"]
        far = [
            _relative(run[key])
            for key in ("distance_to_initial", "distance_to_reference", "distance_travelled")
        ]
        losses = [each for each in run["loss"] if each is not None]
        straightness = run["straightness"]
        table.add_row(
            Text(escape_unprintable(run["name"])),
            f"{steps[0]} to {steps[-1]}" if steps else "-",
            *far,
            "-" if straightness is None else f"{straightness:.2f}",
            f"{losses[-1]:.3g}" if losses else "-",
        )
    console = Console()
    console.print(table)
    shares = " and ".join(f"{each:.0%}" for each in result.explained)
    text = f"The plane explains {shares} of the variance of {result.parameter_count:,} weights."
    for line in (text, _DISTANCES, *result.note):
        console.print(Text(escape_unprintable(line)))


def _relative(distances: list[float | None] | None) -> str:
    """The last of some distances."""
    last = distances[-1] if distances else None
    return "-" if last is None else f"{last:.3g}"
