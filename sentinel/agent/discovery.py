"""Discovery of the agents on this machine, and queries of their state."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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


def query_agent(registration_file: Path, timeout: float = REQUEST_TIMEOUT_SECONDS) -> DiscoveredRun:
    """Query the agent of `registration_file`, within `timeout` seconds; never raises.

    The registration holds a token for processes of this user.
    """
    try:
        registration = json.loads(registration_file.read_text())
        run, url = str(registration["run"]), str(registration["url"])
        token = str(registration.get("token", ""))
        certificate_file = str(registration.get("certificate_file", ""))
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
    # Not needed where no agent is registered, which is why it is loaded here.
    from sentinel.agent.pinned_request import REFUSALS, get  # noqa: PLC0415

    try:
        response = get(f"{url}/api/run", token, certificate_file, timeout)
        state = response.json() if response.ok else {}
    except (OSError, ValueError) as error:
        is_refused = isinstance(error, REFUSALS)
        return _unanswered(run, url, registration_file, is_refused=is_refused)
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


def _unanswered(run: str, url: str, registration_file: Path, *, is_refused: bool) -> DiscoveredRun:
    is_tls = url.startswith("https:") and is_refused and is_agent_running(registration_file.parent)
    if not is_tls:
        return _unreachable(run, url, registration_file)
    remedy = (
        f"if its web configuration requires a client certificate, open {url} in a browser that has "
        f"one; else see {registration_file.with_name('agent.log')}"
    )
    return DiscoveredRun(run, url, {}, "the agent refuses the TLS connection", remedy)


def _unreachable(run: str, url: str, registration_file: Path) -> DiscoveredRun:
    if is_agent_running(registration_file.parent):
        remedy = f"see {registration_file.with_name('agent.log')}, and try again"
        return DiscoveredRun(run, url, {}, "the agent is running but does not answer", remedy)
    remedy = f"run `sentinel agent --run {run}` to start it again"
    return DiscoveredRun(run, url, {}, "the agent is not running", remedy)
