"""`sentinel status`: the runs of this machine, and how each is doing."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Any

import typer

UNREACHABLE = "unreachable"


def status(
    json: bool = typer.Option(False, "--json", help="One JSON object a run and line."),
) -> None:
    """Show every run that is being served, its step and its open incidents."""
    from sentinel.wire.places import home

    runs = [_asked(path) for path in sorted((home() / "runs").glob("*/agent.json"))]
    for run in runs:
        if json:
            print(jsonlib.dumps(run))
            continue
        print(_line(run))
        for incident in run["incidents"]:
            print(f"  {incident['severity']}: {incident['summary']}")
    if not runs and not json:
        print(f"No run is being served under {home()}.")


def _line(run: dict[str, Any]) -> str:
    if run["state"] == UNREACHABLE:
        return f"{run['run']}: its agent is gone; sentinel agent --run {run['run']} takes over"
    return f"{run['run']}: {run['state']} at step {run['step']} ({run['url']})"


def _asked(path: Path) -> dict[str, Any]:
    import requests

    told: dict[str, Any] = jsonlib.loads(path.read_text())
    answer = {"run": told["run"], "url": told["url"], "state": UNREACHABLE, "step": None}
    try:
        live = requests.get(f"{told['url']}/api/run", timeout=2.0).json()
    except (requests.RequestException, ValueError):
        live = {}
    # Another agent may have the port of one that was killed.
    if live.get("run") != told["run"]:
        return {**answer, "incidents": []}
    return {**answer, **{key: live[key] for key in ("state", "step", "incidents")}}
