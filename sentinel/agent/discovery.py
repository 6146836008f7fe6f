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
from sentinel.transport.paths import home_dir
from sentinel.transport.run_lock import is_lock_held

REQUEST_TIMEOUT_SECONDS = 5.0
"""Seconds that an agent is given to answer."""


@dataclass(frozen=True, slots=True)
class DiscoveredRun:
    """One run that an agent announced. `state` is what the agent says of it; empty if nothing.

    `trouble` says why it said nothing, and `remedy` what to do about that.
    """

    run: str
    url: str
    state: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    remedy: str = ""


def registration_files() -> list[Path]:
    """Where agents of this user told of themselves, by run."""
    return sorted((home_dir() / "runs").glob("*/agent.json"))


def query_agent(registration_file: Path, token: str = "") -> DiscoveredRun:
    """What the agent announced at `path` says of its run; never raises, at most `PATIENCE`."""
    try:
        told = json.loads(registration_file.read_text())
        run, url = str(told["run"]), str(told["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return DiscoveredRun(
            registration_file.parent.name,
            "",
            {},
            f"{registration_file.name} cannot be read",
            f"remove {registration_file}",
        )
    if elsewhere := _remote_node(told, url):
        remedy = f"ask there: ssh {elsewhere} sentinel status"
        return DiscoveredRun(run, url, {}, f"its agent is on node {elsewhere}", remedy)
    try:
        answer = _get(f"{url}/api/run", token)
        state = answer.json() if answer.ok else {}
    except (requests.RequestException, ValueError):
        return _unreachable(run, url, registration_file)
    if answer.status_code == HTTPStatus.UNAUTHORIZED:
        remedy = "set the token in the settings, or SENTINEL_TOKEN"
        return DiscoveredRun(run, url, {}, "its agent asks for a token", remedy)
    # Another agent may have the port of one that was killed.
    if not isinstance(state, dict) or state.get("run") != run:
        return _unreachable(run, url, registration_file)
    return DiscoveredRun(run, url, state)


def _remote_node(registration: dict[str, Any], url: str) -> str:
    """The other node on which alone that agent can be asked; nodes may share a home directory."""
    node = str(registration.get("node", ""))
    there = node not in {"", os.uname().nodename} and is_loopback(urlsplit(url).hostname or "")
    return node if there else ""


def _unreachable(run: str, url: str, registration_file: Path) -> DiscoveredRun:
    if is_lock_held(registration_file.with_name("agent.lock")):
        remedy = f"look at agent.log in {registration_file.parent}, and try again"
        return DiscoveredRun(run, url, {}, "its agent is there but does not answer", remedy)
    return DiscoveredRun(
        run, url, {}, "its agent is gone", f"sentinel agent --run {run} takes over"
    )


def _get(url: str, token: str) -> requests.Response:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with requests.Session() as session:
        # The agent is on this machine: a proxy of the environment is not the way to it.
        session.trust_env = False
        return session.get(
            url, headers=headers, timeout=REQUEST_TIMEOUT_SECONDS, allow_redirects=False
        )
