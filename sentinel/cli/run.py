"""`sentinel run`: monitor a training command without changing it."""

from __future__ import annotations

from pathlib import Path

import typer

CONTEXT = {"allow_interspersed_args": False}
"""Options after the command belong to the command, also without `--`."""


def run(
    command: list[str] = typer.Argument(..., help="The command, after `--`."),
    run: str | None = typer.Option(
        None, "--run", help="Name of the run; by default, that of the script."
    ),
    config: Path | None = typer.Option(None, help="Settings file (sentinel.toml) of the agent."),
) -> None:
    """Run and monitor a training command: torchrun, accelerate, deepspeed, python, a script.

    Input, output and signals of the command are unchanged.

    Exit status: that of the command (128 + n after signal n).

    It is 127 if the command is not found, 126 if it is not executable, 2 on a usage error.
    """
    from sentinel.agent.command_runner import run_command

    raise typer.Exit(run_command(command, run, config))
