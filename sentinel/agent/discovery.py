"""Roster: the runs of this machine that are being served, as their agents tell of them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests

from sentinel.config.url_policy import is_loopback
from sentinel.transport.paths import home
from sentinel.transport.run_lock import held

PATIENCE = 5.0
"""Seconds that an agent is given to answer."""


@dataclass(frozen=True, slots=True)
class Served:
    """One run that an agent announced. `state` is what the agent says of it; empty if nothing.

    `trouble` says why it said nothing, and `remedy` what to do about that.
    """

    run: str
    url: str
    state: dict[str, Any] = field(default_factory=dict)
    trouble: str = ""
    remedy: str = ""


def announced() -> list[Path]:
    """Where agents of this user told of themselves, by run."""
    return sorted((home() / "runs").glob("*/agent.json"))


def ask(path: Path, token: str = "") -> Served:
    """What the agent announced at `path` says of its run; never raises, at most `PATIENCE`."""
    try:
        told = json.loads(path.read_text())
        run, url = str(told["run"]), str(told["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return Served(path.parent.name, "", {}, f"{path.name} cannot be read", f"remove {path}")
    if elsewhere := _elsewhere(told, url):
        remedy = f"ask there: ssh {elsewhere} sentinel status"
        return Served(run, url, {}, f"its agent is on node {elsewhere}", remedy)
    try:
        answer = _get(f"{url}/api/run", token)
        state = answer.json() if answer.ok else {}
    except (requests.RequestException, ValueError):
        return _silent(run, url, path)
    if answer.status_code == HTTPStatus.UNAUTHORIZED:
        remedy = "set the token in the settings, or SENTINEL_TOKEN"
        return Served(run, url, {}, "its agent asks for a token", remedy)
    # Another agent may have the port of one that was killed.
    if not isinstance(state, dict) or state.get("run") != run:
        return _silent(run, url, path)
    return Served(run, url, state)


def _elsewhere(told: dict[str, Any], url: str) -> str:
    """The other node on which alone that agent can be asked; nodes may share a home directory."""
    node = str(told.get("node", ""))
    there = node not in {"", os.uname().nodename} and is_loopback(urlsplit(url).hostname or "")
    return node if there else ""


def _silent(run: str, url: str, path: Path) -> Served:
    if held(path.with_name("agent.lock")):
        remedy = f"look at agent.log in {path.parent}, and try again"
        return Served(run, url, {}, "its agent is there but does not answer", remedy)
    return Served(run, url, {}, "its agent is gone", f"sentinel agent --run {run} takes over")


def _get(url: str, token: str) -> requests.Response:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with requests.Session() as session:
        # The agent is on this machine: a proxy of the environment is not the way to it.
        session.trust_env = False
        return session.get(url, headers=headers, timeout=PATIENCE, allow_redirects=False)
