"""`sentinel run`: watch a training command that knows nothing of sentinel."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import typer

CONTEXT = {"allow_interspersed_args": False}
"""The command's own options are its own, with or without `--`."""


def run(
    command: list[str] = typer.Argument(..., help="The command, after `--`."),
    run: str | None = typer.Option(None, "--run", help="Name of the run; else the script's."),
    config: Path | None = typer.Option(None, help="A sentinel.toml for the agent."),
) -> None:
    """Run a training command and watch it: torchrun, accelerate, deepspeed, python, a script.

    Its output, its input, its signals and its exit status are as if it had been run alone.
    """
    from sentinel.agent.command_runner import EXIT_NOT_FOUND, CommandRunner, print_message

    if config is not None and not config.is_file():
        print(f"sentinel run: --config {config}: there is no such file.", file=sys.stderr)
        raise typer.Exit(2)
    if shutil.which(command[0]) is None and not Path(command[0]).exists():
        print_message(
            f"{command[0]}: command not found. Is its environment active, or its path complete?"
        )
        raise typer.Exit(EXIT_NOT_FOUND)
    raise typer.Exit(CommandRunner(command, run, config).run())
