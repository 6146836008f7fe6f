"""Waits for a run: in a request that its agent answers late, else by looking at its database.

The agent may end, be killed or start again meanwhile.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
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
    began, stored = clock(), _StoredVerdict(run, clock)
    while True:
        looked = clock()
        left = inf if timeout is None else max(timeout - (looked - began), 0.0)
        database = find_database(run)
        answer = _ask_agent(database, run, conditions, left)
        verdict = stored.read(database) if answer is None else answer
        end = find_end(conditions, verdict)
        left = inf if timeout is None else timeout - (clock() - began)
        if answer is not None:
            stored.note_answer()
        elif end is None and not _may_go_on(run, database, stored.unchanged_seconds):
            end = WaitEnd(Outcome.ENDED)
        if end is None and left <= 0.0:
            end = WaitEnd(Outcome.TIMEOUT)
        if end is not None:
            return Waited(run, end, verdict, clock() - began)
        # An agent that ends answers at once.
        sleep(min(max(LOOK_SECONDS - (clock() - looked), 0.0), left))


class _StoredVerdict:
    """The verdict by what is stored of a run, which is read again after a change only."""

    def __init__(self, run: str, clock: Callable[[], float]) -> None:
        self._run, self._clock, self._changed_at = run, clock, clock()
        self._mark: object = None
        self._verdict = JsonObject()
        self._is_read = False

    @property
    def unchanged_seconds(self) -> float:
        """Time since a change was seen, or an answer of the agent."""
        return self._clock() - self._changed_at

    def note_answer(self) -> None:
        """The agent of the run has answered."""
        self._changed_at = self._clock()

    def read(self, database: Path) -> JsonObject:
        """The verdict; the last one for a while if the database cannot be read any more.

        Raises NewerSchemaError and sqlite3.Error.
        """
        mark = (database, change_mark(database))
        if mark != self._mark:
            self._mark, self._changed_at, self._is_read = mark, self._clock(), False
        if not self._is_read:
            try:
                self._verdict = stored_run(self._run, database)["verdict"]
                self._is_read = True
            except sqlite3.Error:
                # An agent that starts replaces a damaged database.
                if not self._verdict or self.unchanged_seconds >= RESTART_SECONDS:
                    raise
        return self._verdict


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


def _may_go_on(run: str, database: Path, unchanged_seconds: float) -> bool:
    """Whether a run without an answer has an agent or a rank, or may have one again soon.

    `unchanged_seconds` is how long this process has seen no change: the time of a file may be in
    the future, by the clock of a file server.
    """
    if is_agent_running(shared_run_dir(run)) or is_agent_running(database.parent):
        return True
    headers = [read_header(ring) for ring in list_rings(run)]
    if any(header is not None and header.process.is_alive() for header in headers):
        return True
    written = max(_written(database), _written(database.with_name(f"{database.name}-wal")))
    registration = read_registration(database.with_name(REGISTRATION_NAME))
    is_foreign = registration is not None and registration.node not in {"", os.uname().nodename}
    age = max(time.time() - written, unchanged_seconds)
    return age < (FOREIGN_AGENT_SECONDS if is_foreign else RESTART_SECONDS)


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
