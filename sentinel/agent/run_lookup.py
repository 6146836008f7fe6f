"""The state and the verdict of a run by its id: from its agent, else from its database."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sentinel.agent.discovery import REQUEST_TIMEOUT_SECONDS, DiscoveredRun, query_agent
from sentinel.agent.registration import REGISTRATION_NAME
from sentinel.model.json_safe import JsonObject, json_safe
from sentinel.store.run_names import unknown_run_hint
from sentinel.transport.paths import DATABASE_NAME, current_run_dir, home_dir


class UnknownRunError(LookupError):
    """There is no run of that id; the message names those that are similar."""


def find_database(run: str) -> Path:
    """The database of the run of that id. Raises UnknownRunError, RunIdError."""
    path = current_run_dir(run) / DATABASE_NAME
    if not path.is_file():
        raise UnknownRunError(f"no run {run!r} under {home_dir()}. {unknown_run_hint(run)}")
    return path


def find_run(run: str, timeout: float = REQUEST_TIMEOUT_SECONDS) -> DiscoveredRun:
    """The run of that id in the state of `/api/run`, with its `verdict`, see `health`.

    The state is the answer of its agent, or what the database holds if none answers within
    `timeout` seconds; then `problem` states why. Raises UnknownRunError, RunIdError,
    NewerSchemaError, and sqlite3.Error if the database cannot be read.
    """
    return query_run(run, find_database(run), timeout)


def query_run(run: str, path: Path, timeout: float = REQUEST_TIMEOUT_SECONDS) -> DiscoveredRun:
    """`find_run` of the run whose database is at `path`, which may be a copy."""
    registration = path.with_name(REGISTRATION_NAME)
    found = query_agent(registration, timeout) if registration.exists() else DiscoveredRun(run, "")
    if "verdict" in found.state:
        return found
    if not found.state:
        return DiscoveredRun(run, "", stored_run(run, path), found.problem, found.remedy)
    # An agent of an earlier version.
    return replace(found, state=found.state | {"verdict": _judge(path, found.state)})


def stored_run(run: str, path: Path) -> JsonObject:
    """The state of the run that its database at `path` holds, with its verdict, as JSON.

    Raises NewerSchemaError and sqlite3.Error.
    """
    # Only a run without an agent needs all that restores a state.
    from sentinel.metrics.stored_state import stored_state  # noqa: PLC0415

    try:
        state: JsonObject = json_safe(stored_state(path, run))
    except FileNotFoundError:
        # An agent that starts has made the file, and stored nothing yet.
        state = {"run": run, "state": "starting", "is_live": False}
    return state | {"verdict": _judge(path, state)}


def _judge(path: Path, state: JsonObject) -> JsonObject:
    from sentinel.store.run_reader import RunReader  # noqa: PLC0415
    from sentinel.store.verdict import health  # noqa: PLC0415

    cases: list[JsonObject] = []
    with suppress(FileNotFoundError):
        cases = RunReader(path).cases()
    return health(state, cases, time.time())


def read_verdict(run: str, timeout: float = REQUEST_TIMEOUT_SECONDS) -> JsonObject:
    """The verdict on the run of that id; raises what `find_run` raises."""
    verdict: JsonObject = find_run(run, timeout).state["verdict"]
    return verdict
