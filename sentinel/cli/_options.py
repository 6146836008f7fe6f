"""Options, settings and error messages that several commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sentinel.cli._run_ids import complete_detector, complete_run, resolve_run

if TYPE_CHECKING:
    from sentinel.readers.log_folder import LogRun

EXIT_USAGE_ERROR = 2

RunArgument = Annotated[
    str,
    typer.Argument(
        help="Run id, as shown by `sentinel status --all`.",
        autocompletion=complete_run,
        callback=resolve_run,
    ),
]
DetectorArgument = Annotated[
    str | None,
    typer.Argument(help="Detector; by default, all.", autocompletion=complete_detector),
]
ReasonOption = Annotated[str, typer.Option(help="Reason, shown to other users.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


def error_exit(command: str, message: str) -> typer.Exit:
    """Print an error to stderr; returns the exception to raise."""
    print(f"sentinel {command}: {message}", file=sys.stderr)
    return typer.Exit(EXIT_USAGE_ERROR)


def exit_if_off(command: str, consequence: str) -> None:
    """Exit if the variable is set with which nothing would be `consequence`, such as checked."""
    if os.environ.get("SENTINEL_OFF", "0") not in {"", "0"}:
        message = f"SENTINEL_OFF is set, so nothing would be {consequence}. Unset it."
        raise error_exit(command, message)


def settings_environ(config: Path | None) -> Mapping[str, str]:
    """The environment, with the settings file `config` if one is given."""
    return os.environ if config is None else {**os.environ, "SENTINEL_CONFIG": str(config)}


def logs_of_several_runs(path: Path) -> list[LogRun]:
    """The logs below a folder that is not itself one run; empty for any other path."""
    if not path.is_dir():
        return []
    from sentinel.readers.log_folder import find_logs

    try:
        logs = find_logs(path)
    except OSError:
        return []
    return [] if any(log.path == path for log in logs) else logs
