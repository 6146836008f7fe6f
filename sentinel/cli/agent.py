"""`sentinel agent`: the agent of one run on this node. Trainers start it automatically."""

from __future__ import annotations

from pathlib import Path

import typer

from sentinel.cli._options import complete_run, settings_environ


def agent(
    run: str = typer.Option(
        ..., help="Run id: the name of the run's directory.", autocompletion=complete_run
    ),
    config: Path | None = typer.Option(None, help="Settings file (sentinel.toml)."),
) -> None:
    """Monitor one run until it ends: run the detectors, send notifications, serve /metrics.

    Exit status: 0 at the end of the run or if another agent serves it, 1 if a file or port is not
    usable, 2 if the settings file cannot be read or the run id is wrong.
    """
    from sentinel.cli._agent_service import serve_run

    raise typer.Exit(serve_run(run, settings_environ(config)))
