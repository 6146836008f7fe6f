"""Discovery of the agents on this machine, and queries of their state."""

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
from sentinel.transport.paths import is_agent_running, list_current_run_dirs

REQUEST_TIMEOUT_SECONDS = 5.0
"""Timeout of a query."""


@dataclass(frozen=True, slots=True)
class DiscoveredRun:
    """A run that an agent registered, with the agent's answer.

    `state` is the JSON of `/api/run`. It is empty if the agent did not answer: `problem` is the
    reason then, and `remedy` what to do.
    """

    run: str
    url: str
    state: dict[str, Any] = field(default_factory=dict)
    problem: str = ""
    remedy: str = ""


def registration_files() -> list[Path]:
    """Paths of the `agent.json` files of this user, sorted by run."""
    files = (directory / "agent.json" for directory in list_current_run_dirs().values())
    return [path for path in files if path.exists()]


def query_agent(registration_file: Path, token: str = "") -> DiscoveredRun:
    """Query the agent of `registration_file`, within `REQUEST_TIMEOUT_SECONDS`; never raises."""
    try:
        registration = json.loads(registration_file.read_text())
        run, url = str(registration["run"]), str(registration["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return DiscoveredRun(
            _run_of(registration_file),
            "",
            {},
            f"{registration_file.name} cannot be read",
            f"remove {registration_file}",
        )
    if node := _remote_node(registration, url):
        remedy = f"run `ssh {node} sentinel status`"
        return DiscoveredRun(run, url, {}, f"the agent is on node {node}", remedy)
    try:
        response = _get(f"{url}/api/run", token)
        state = response.json() if response.ok else {}
    except (requests.RequestException, ValueError):
        return _unreachable(run, url, registration_file)
    if response.status_code == HTTPStatus.UNAUTHORIZED:
        remedy = "set SENTINEL_TOKEN, or `token` in the settings"
        return DiscoveredRun(run, url, {}, "the agent requires a token", remedy)
    # Another agent may use the port of one that was killed.
    if not isinstance(state, dict) or state.get("run") != run:
        return _unreachable(run, url, registration_file)
    return DiscoveredRun(run, url, state)


def _run_of(registration_file: Path) -> str:
    """Id of the run whose directory holds the file."""
    directories = list_current_run_dirs().items()
    return next(
        (run for run, directory in directories if directory == registration_file.parent),
        registration_file.parent.name,
    )


def _remote_node(registration: dict[str, Any], url: str) -> str:
    """Node of an agent that only that node can reach; empty if it is reachable from here.

    Nodes may share a home directory, so the registration may be of another node.
    """
    node = str(registration.get("node", ""))
    is_remote = node not in {"", os.uname().nodename} and is_loopback(urlsplit(url).hostname or "")
    return node if is_remote else ""


def _unreachable(run: str, url: str, registration_file: Path) -> DiscoveredRun:
    if is_agent_running(registration_file.parent):
        remedy = f"see {registration_file.with_name('agent.log')}, and try again"
        return DiscoveredRun(run, url, {}, "the agent is running but does not answer", remedy)
    remedy = f"run `sentinel agent --run {run}` to start it again"
    return DiscoveredRun(run, url, {}, "the agent is not running", remedy)


def _get(url: str, token: str) -> requests.Response:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with requests.Session() as session:
        # The agent is on this machine: do not use the proxy of the environment.
        session.trust_env = False
        return session.get(
            url, headers=headers, timeout=REQUEST_TIMEOUT_SECONDS, allow_redirects=False
        )
