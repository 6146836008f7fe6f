"""`sentinel run`: monitor a training command without changing it."""

from __future__ import annotations

import shutil
from pathlib import Path

import typer

from sentinel.cli._options import error_exit

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
    from sentinel.agent.command_runner import EXIT_NOT_FOUND, CommandRunner, print_message

    if config is not None and not config.is_file():
        raise error_exit("run", f"--config {config}: no such file.")
    if shutil.which(command[0]) is None and _is_missing(command[0]):
        print_message(
            f"{command[0]}: command not found. Check the path, and that its environment is active."
        )
        raise typer.Exit(EXIT_NOT_FOUND)
    raise typer.Exit(CommandRunner(command, run, config).run())


def _is_missing(path: str) -> bool:
    """Whether there is no such file; False where a folder of the path may not be searched."""
    try:
        Path(path).stat()
    except PermissionError:
        return False
    except OSError:
        return True
    return False
