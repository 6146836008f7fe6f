"""`sentinel insight`: pictures and tables that are worked out from runs and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentinel.cli._options import JsonOption, error_exit, read_error_text
from sentinel.cli._run_ids import complete_run

if TYPE_CHECKING:
    from rich.table import Table

    from sentinel.insight.importance import Importance

app = typer.Typer(no_args_is_help=True)

OutputOption = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write the result as one HTML file.")
]

_BAR_CHARS = 10


@app.callback()
def insight() -> None:
    """Work out pictures and tables from runs and checkpoints."""


@app.command()
def importance(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Tables of runs (.json, .jsonl, .csv).",
            metavar="RUNS...",
            autocompletion=complete_run,
        ),
    ],
    outcome: Annotated[
        str, typer.Option(help="Signal or column that is explained, such as eval_loss.")
    ] = "",
    better: Annotated[
        str, typer.Option(help="Which outcome is better: lower or higher; known for most signals.")
    ] = "",
    failed: Annotated[
        str, typer.Option(help="Runs that failed or ended with NaN: drop, or count as worst.")
    ] = "drop",
    json: JsonOption = False,
) -> None:
    """Show which settings explain an outcome over many runs.

    A random forest predicts the outcome from the settings. Its importance says how much worse it
    does on runs that it has not seen once the setting is shuffled, as a share of the variance of
    the outcome; the correlation is that of ranks.

    Exit status: 0 on success, 2 if the runs cannot be read or compared.
    """
    from sentinel.cli._progress import ProgressBar
    from sentinel.insight.importance import importance as explain
    from sentinel.insight.run_collection import read_table

    collected = []
    for path in runs:
        try:
            collected += read_table(Path(path), outcome)
        except (OSError, ValueError) as error:
            text = f"cannot read {path}: {read_error_text(error)}"
            raise error_exit("insight importance", text) from None
    if better not in {"", "lower", "higher"} or failed not in {"drop", "worst"}:
        text = "--better is lower or higher, and --failed is drop or worst."
        raise error_exit("insight importance", text)
    try:
        with ProgressBar("Fitting forests") as bar:
            result = explain(
                collected,
                outcome or "outcome",
                better=better or None,
                failed="worst" if failed == "worst" else "drop",
                progress=bar.update,
            )
    except (ValueError, ImportError) as error:
        raise error_exit("insight importance", str(error)) from None
    if json:
        from json import dumps

        from sentinel.model.json_safe import json_safe

        print(dumps(json_safe(result.to_json()), allow_nan=False))
    else:
        _print_importance(result)


def _print_importance(result: Importance) -> None:
    from rich.console import Console
    from rich.text import Text

    from sentinel.cli._terminal import escape_unprintable

    console = Console()
    console.print(_importance_table(result))
    if result.score is not None:
        score = result.score
        console.print(
            f"{result.runs} runs. On held-out runs the forest explains "
            f"{max(score['r2'], 0):.0%} of the variance of {escape_unprintable(result.outcome)} "
            f"(R2 {score['r2']:.2f}, 95 % interval {score['low']:.2f} to {score['high']:.2f}).",
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

    from sentinel.cli._terminal import escape_unprintable

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
