"""Waits for a run: in a request that its agent answers late, else by looking at its database.

The agent may end, be killed or start again meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from sentinel.agent.discovery import read_registration
from sentinel.agent.registration import REGISTRATION_NAME
from sentinel.agent.run_lookup import find_database, stored_run
from sentinel.model.json_safe import JsonObject
from sentinel.store.database import change_mark
from sentinel.store.run_summary import FOREIGN_AGENT_SECONDS
from sentinel.store.wait_conditions import Outcome, WaitEnd, check_conditions, find_end
from sentinel.transport.paths import is_agent_running, list_rings, shared_run_dir
from sentinel.transport.ring import read_header

REQUEST_SECONDS = 25.0
"""Longest wait of one request; the agent answers it sooner once a condition holds."""
ANSWER_SECONDS = 5.0
"""How long an agent may take to answer after that."""
LOOK_SECONDS = 1.0
"""Interval of the looks at the database while no agent answers."""
RESTART_SECONDS = 30.0
"""Time in which a run that lost its agent and all its ranks may be started again."""


@dataclass(frozen=True, slots=True)
class Waited:
    """How a wait ended, with the verdict then and the seconds that it took."""

    run: str
    end: WaitEnd
    verdict: JsonObject
    seconds: float

    def to_dict(self) -> JsonObject:
        """The end as plain data: run, outcome, condition, seconds, verdict."""
        return {
            "run": self.run,
            "outcome": self.end.outcome.value,
            "condition": self.end.condition,
            "seconds": round(self.seconds, 1),
            "verdict": self.verdict,
        }


def wait_for_run(
    run: str,
    conditions: Sequence[str],
    timeout: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Waited:
    """Wait until one of the conditions holds, the run is over, or `timeout` seconds have passed.

    A run that has no outcome is over once it has no agent and no rank, and `RESTART_SECONDS` have
    passed. Raises ValueError for an unknown condition, and what `find_run` raises.
    """
    check_conditions(conditions)
    began = clock()
    stored, mark = JsonObject(), None
    while True:
        left = float("inf") if timeout is None else max(timeout - (clock() - began), 0.0)
        database = find_database(run)
        answer = _ask_agent(database, run, conditions, left)
        verdict = answer
        if answer is None:
            newest = (database, change_mark(database))
            if newest != mark:
                stored, mark = stored_run(run, database)["verdict"], newest
            verdict = stored
        assert verdict is not None
        end = find_end(conditions, verdict)
        left = float("inf") if timeout is None else timeout - (clock() - began)
        if end is None and answer is None and not _may_go_on(run, database):
            end = WaitEnd(Outcome.ENDED)
        if end is None and left <= 0.0:
            end = WaitEnd(Outcome.TIMEOUT)
        if end is not None:
            return Waited(run, end, verdict, clock() - began)
        if answer is None:
            sleep(min(LOOK_SECONDS, left))


def _ask_agent(
    database: Path, run: str, conditions: Sequence[str], left: float
) -> JsonObject | None:
    """The verdict that the agent answers, late unless a condition holds; None without an answer."""
    registration = read_registration(database.with_name(REGISTRATION_NAME))
    if registration is None or registration.remote_node:
        return None
    seconds = min(REQUEST_SECONDS, left)
    query = urlencode({"until": conditions, "seconds": seconds}, doseq=True)
    try:
        response = registration.get(f"/api/wait?{query}", seconds + min(ANSWER_SECONDS, left + 1.0))
        answer = response.json() if response.ok else {}
    except (OSError, ValueError):
        return None
    verdict: Any = answer.get("verdict") if isinstance(answer, dict) else None
    # Another agent may use the port of one that was killed.
    return verdict if isinstance(verdict, dict) and verdict.get("run") == run else None


def _may_go_on(run: str, database: Path) -> bool:
    """Whether a run without an answer has an agent or a rank, or may have one again soon."""
    if is_agent_running(shared_run_dir(run)) or is_agent_running(database.parent):
        return True
    headers = [read_header(ring) for ring in list_rings(run)]
    if any(header is not None and header.process.is_alive() for header in headers):
        return True
    written = max(_written(database), _written(database.with_name(f"{database.name}-wal")))
    registration = read_registration(database.with_name(REGISTRATION_NAME))
    is_foreign = registration is not None and registration.node not in {"", os.uname().nodename}
    return time.time() - written < (FOREIGN_AGENT_SECONDS if is_foreign else RESTART_SECONDS)


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
