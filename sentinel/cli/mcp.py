"""`sentinel mcp`: answers coding agents about runs, by the Model Context Protocol."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import typer

from sentinel.cli._options import error_exit, settings_environ

INSTALL_HINT = "the package mcp is missing: pip install 'train-sentinel[mcp]'."
_UPGRADE = "pip install --upgrade 'train-sentinel[mcp]'"


def mcp(
    directory: Path | None = typer.Argument(
        None, help="Home directory of sentinel, by default $SENTINEL_HOME, or a folder with logs."
    ),
    allow_actions: bool = typer.Option(
        False,
        "--allow-actions",
        help="Let the coding agent acknowledge, silence, request a checkpoint or a stop.",
    ),
    config: Path | None = typer.Option(None, help="Settings file (sentinel.toml)."),
) -> None:
    """Answer a coding agent about runs, over standard input and output.

    The coding agent starts this command. Its tools list runs, judge their health, give evidence,
    cause and remedy, and compare; each answer is short. Text of a run is marked as untrusted. With
    `sentinel serve`, coding agents connect to /mcp instead.

    Exit status: 0 once standard input is closed, or after Ctrl-C or SIGTERM, 2 if the package is
    missing or the directory cannot be read.
    """
    from importlib.util import find_spec

    from sentinel.config.settings import ConfigError
    from sentinel.transport.paths import describe_error

    if find_spec("mcp") is None:
        raise error_exit("mcp", INSTALL_HINT)
    from sentinel.cli.serve import home_runs, log_runs, use_directory

    try:
        from sentinel.mcp.server import make_server
    except ImportError as error:
        raise error_exit("mcp", f"the package mcp is too old ({error}): {_UPGRADE}.") from None
    logs = use_directory(directory)
    try:
        runs = home_runs() if logs is None else log_runs(logs, settings_environ(config))
    except (ConfigError, ValueError) as error:
        raise error_exit("mcp", str(error)) from None
    except OSError as error:
        raise error_exit("mcp", describe_error(error)) from None

    def end(*_: object) -> None:
        runs.close()
        # A thread that waits for standard input, or for a file server, would not end.
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    make_server(runs, allow_actions=allow_actions, reads_paths=True).run("stdio")
    end()
