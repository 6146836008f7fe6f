"""Discovery of the agents on this machine, and queries of their state."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sentinel.config.url_policy import is_loopback
from sentinel.transport.paths import is_agent_running, list_current_run_dirs

if TYPE_CHECKING:
    import requests

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


@dataclass(frozen=True, slots=True)
class Registration:
    """Where the agent of a run answers, and the token for processes of this user.

    `node` is the node of the agent, and `certificate_file` that of its certificate; both may be
    empty.
    """

    run: str
    url: str
    token: str = ""
    certificate_file: str = ""
    node: str = ""

    @property
    def remote_node(self) -> str:
        """Node of an agent that only that node can reach; empty if it is reachable from here.

        Nodes may share a home directory, so the registration may be of another node.
        """
        is_local = not is_loopback(urlsplit(self.url).hostname or "")
        return "" if is_local or self.node in {"", os.uname().nodename} else self.node

    def get(self, path: str, timeout: float) -> requests.Response:
        """The response to that path, within `timeout` seconds.

        Raises requests.RequestException, OSError or ValueError.
        """
        # Not needed where no agent is registered, which is why it is loaded here.
        from sentinel.agent.pinned_request import get  # noqa: PLC0415

        return get(f"{self.url}{path}", self.token, self.certificate_file, timeout)


def read_registration(registration_file: Path) -> Registration | None:
    """The registration in that file; None if there is none, or it cannot be read."""
    try:
        found = json.loads(registration_file.read_text())
        return Registration(
            str(found["run"]),
            str(found["url"]),
            str(found.get("token", "")),
            str(found.get("certificate_file", "")),
            str(found.get("node", "")),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def query_agent(registration_file: Path, timeout: float = REQUEST_TIMEOUT_SECONDS) -> DiscoveredRun:
    """Query the agent of `registration_file`, within `timeout` seconds; never raises."""
    found = read_registration(registration_file)
    if found is None:
        return DiscoveredRun(
            _run_of(registration_file),
            "",
            {},
            f"{registration_file.name} cannot be read",
            f"remove {registration_file}",
        )
    run, url = found.run, found.url
    if node := found.remote_node:
        remedy = f"run `ssh {node} sentinel status`"
        return DiscoveredRun(run, url, {}, f"the agent is on node {node}", remedy)
    try:
        response = found.get("/api/run", timeout)
        state = response.json() if response.ok else {}
    except (OSError, ValueError) as error:
        from sentinel.agent.pinned_request import REFUSALS  # noqa: PLC0415

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
