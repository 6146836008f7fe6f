"""`sentinel open`: the link to the page of a run, or to the list of all runs."""

from __future__ import annotations

import json as jsonlib
import os
import sys
from collections.abc import Mapping

import typer

from sentinel.cli._options import complete_run, resolve_argument


def open(  # noqa: A001 - the name of the command
    run: str | None = typer.Argument(
        None,
        help="Run id; by default, the list of all runs.",
        autocompletion=complete_run,
        callback=resolve_argument,
    ),
    show: bool = typer.Option(True, "--show/--print", help="Open a browser if there is a display."),
    json: bool = typer.Option(False, "--json", help="Print the link as a JSON object."),
) -> None:
    """Print the link to the page of a run, and open it where there is a display.

    While the run has an agent, the page is the agent's, else that of a running `sentinel serve`.

    Exit status: 0 with a link, 1 if nothing serves the run, 2 if there is no such run.
    """
    from sentinel.agent.serve_registration import find_server
    from sentinel.cli.serve import tunnel_command

    server = find_server()
    url = f"{server}/" if server and run is None else ""
    if run is not None:
        url = _run_url(run, server)
    if json:
        print(jsonlib.dumps({"run": run, "url": url or None}))
    elif url:
        print(url)
        if hint := tunnel_command(os.environ, url):
            print(f"From your own machine: {hint}")
    if not url:
        what = "No server shows the runs" if run is None else f"Nothing serves run {run}"
        print(f"{what}: start `sentinel serve`, and try again.", file=sys.stderr)
        raise typer.Exit(1)
    if show and not json and has_display(os.environ):
        import webbrowser

        webbrowser.open(url)


def has_display(environ: Mapping[str, str]) -> bool:
    """Whether a browser would be seen by the person who types the command.

    >>> has_display({"DISPLAY": ":0"}), has_display({"DISPLAY": "localhost:10.0"}), has_display({})
    (True, False, False)
    """
    display = environ.get("DISPLAY", "")
    # A forwarded display is slow, and the link works in the browser of that machine.
    is_local = display.startswith(":") or bool(environ.get("WAYLAND_DISPLAY"))
    return sys.platform == "darwin" or (is_local and not environ.get("SSH_CONNECTION"))


def _run_url(run: str, server: str) -> str:
    from urllib.parse import quote

    from sentinel.agent.discovery import query_agent
    from sentinel.agent.registration import REGISTRATION_NAME
    from sentinel.cli._run_database import run_database_path

    directory = run_database_path("open", run).parent
    path = f"runs/{quote(run, safe='')}/"
    registration = directory / REGISTRATION_NAME
    if registration.exists():
        discovered = query_agent(registration)
        if discovered.state:
            return f"{discovered.url}/{path}"
    return f"{server}/{path}" if server else ""
