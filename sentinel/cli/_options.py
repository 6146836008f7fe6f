"""Arguments, options, settings and error messages that several commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sentinel.readers.log_folder import LogRun

EXIT_USAGE_ERROR = 2
MAX_COMPLETIONS = 200
"""Newest runs that the shell offers."""


def resolve_run(run: str) -> str:
    """The only id that begins with `run`; else, or if a run or file has that name, `run` itself.

    The launcher's part of an id, such as the end of "sft-1edff4", need not be typed.
    """
    from sentinel.transport.paths import list_runs

    runs = list_runs()
    beginning = [each for each in runs if each.startswith(run)] if run else []
    is_exact = run in runs or Path(run).exists()
    return run if is_exact or len(beginning) != 1 else beginning[0]


def resolve_argument(run: str | None) -> str | None:
    """`resolve_run` of an argument that may be left out."""
    return None if run is None else resolve_run(run)


def resolve_arguments(runs: list[str]) -> list[str]:
    """`resolve_run` of each."""
    return [resolve_run(run) for run in runs]


def complete_run(incomplete: str) -> list[str]:
    """Ids that begin with what was typed, the newest first."""
    from sentinel.store.run_names import newest_first
    from sentinel.transport.paths import list_runs

    runs = [each for each in list_runs() if each.startswith(incomplete)]
    return newest_first(runs)[:MAX_COMPLETIONS]


def complete_detector(incomplete: str) -> list[str]:
    """Names of detectors that begin with what was typed; their modules are not imported."""
    from importlib.util import find_spec
    from pkgutil import iter_modules

    package = find_spec("sentinel.detectors")
    found = iter_modules(package.submodule_search_locations if package else None)
    names = [each.name for each in found if not each.name.startswith("_")]
    return sorted(name for name in names if name.startswith(incomplete))


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


@contextmanager
def exit_on(command: str, *errors: type[Exception]) -> Iterator[None]:
    """Let an error of these kinds, raised in the block, end the command with its message."""
    try:
        yield
    except errors as error:
        raise error_exit(command, str(error)) from None


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
