"""`sentinel preflight`: check the set-up of a training in its first updates."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from sentinel.cli._options import error_exit, exit_if_off

if TYPE_CHECKING:
    from sentinel.agent.preflight import PreflightResult

CONTEXT = {"allow_interspersed_args": False}
"""Options after the command belong to the command, also without `--`."""
EXIT_PROBLEM, EXIT_INCOMPLETE = 3, 4
MAX_WRITTEN = 20
"""Written files that are listed for people; all of them are in the JSON."""
_WIDTH = 120
"""Characters of a line of the table where it is not shown on a terminal."""
_STYLES = {"found": "bold red", "passed": "green", "not checked": "dim"}


def preflight(
    command: list[str] = typer.Argument(..., help="The command, after `--`."),
    updates: int = typer.Option(20, min=1, help="Updates that are measured on each rank."),
    max_seconds: float = typer.Option(
        120.0, "--max-seconds", min=1.0, help="Most seconds until the command is ended."
    ),
    json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Run a training for a few updates, end it, and print what the checks of its set-up found.

    The output of the command goes to standard error. It is ended by SIGTERM, and by SIGKILL 30
    seconds later. No notification is sent, and no file of sentinel stays.

    Exit status: 0 if no problem was found, 3 if one was.

    It is 4 if fewer updates were measured and no problem was found, 2 if the command cannot be run.
    """
    from sentinel.agent.command_runner import is_missing
    from sentinel.agent.preflight import Preflight
    from sentinel.transport.paths import describe_error

    exit_if_off("preflight", "checked")
    if is_missing(command[0]):
        raise error_exit("preflight", f"{command[0]}: command not found.")
    try:
        result = Preflight(command, updates, max_seconds).measure()
    except OSError as error:
        raise error_exit("preflight", describe_error(error)) from None
    if json:
        print(jsonlib.dumps({**asdict(result), "outcome": outcome_text(result)}))
    else:
        _print_result(result)
    if result.has_problem:
        raise typer.Exit(EXIT_PROBLEM)
    raise typer.Exit(0 if result.is_complete else EXIT_INCOMPLETE)


def outcome_text(result: PreflightResult) -> str:
    """How far the command came and how it ended, as a sentence."""
    from sentinel.transport.launch_status import signal_name

    of_all = "" if result.is_complete else f" of {result.wanted}"
    measured = f"{result.updates}{of_all} updates"
    if result.ranks > 1:
        measured = f"{measured} on each of {result.ranks} ranks"
    if result.exit_status is None:
        why = ", until the interrupt" if result.was_interrupted else ""
        killed = " It did not end at SIGTERM, so SIGKILL followed." if result.was_killed else ""
        return f"{measured} were measured in {result.seconds:.0f} s{why}.{killed}"
    status = signal_name(result.exit_status) or f"status {result.exit_status}"
    verb = "failed" if result.exit_status else "ended"
    nothing = "" if result.updates else " No training was found in it."
    return f"The command {verb} with {status} after {measured}.{nothing}"


def _print_result(result: PreflightResult) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from sentinel.cli._terminal import escape_unprintable
    from sentinel.model.quantity_text import format_bytes

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    table = Table(box=SIMPLE_HEAD)
    for title, ratio in (("Check", None), ("Result", None), ("Evidence", 1), ("Remedy", 1)):
        table.add_column(title, ratio=ratio, no_wrap=ratio is None)
    for each in result.checks:
        texts = (each["check"], each["result"], each["evidence"], each["remedy"])
        check, shown, *rest = (Text(escape_unprintable(text)) for text in texts)
        shown.stylize(_STYLES[each["result"]])
        table.add_row(check, shown, *rest)
    if result.checks:
        console.print(table)
    if result.facts:
        print(
            escape_unprintable(
                "Set-up: " + ", ".join(f"{each['name']} {each['value']}" for each in result.facts)
            )
            + "."
        )
    files = [f"{path} ({format_bytes(size, 3)})" for path, size in result.written.items()]
    shown_files = ", ".join(files[:MAX_WRITTEN]) or "none"
    more = f" and {len(files) - MAX_WRITTEN} more" if len(files) > MAX_WRITTEN else ""
    bound = "" if result.all_compared else " Only the first files of the directory were compared."
    print(escape_unprintable(f"Files that the command wrote: {shown_files}{more}.{bound}"))
    print(escape_unprintable(outcome_text(result)), flush=True)
