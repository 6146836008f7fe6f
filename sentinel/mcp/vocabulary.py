"""Words of our own in the data of a run; what is none of them may be anything."""

from __future__ import annotations

from typing import Any

from sentinel.mcp.fence import OwnText, known_text
from sentinel.model.incident import Resolution
from sentinel.model.run_states import ACTIVE_STATES, FAILED_STATES, UNFINISHED
from sentinel.store.run_summary import READING
from sentinel.store.verdict import STATUSES
from sentinel.web.runbooks import read_runbook

_STATES = ACTIVE_STATES | FAILED_STATES | {UNFINISHED, READING, "unknown", "finished"}
_SEVERITIES = frozenset({"critical", "warning", "info"})
_RESOLUTIONS = frozenset(each.value for each in Resolution)
CHECK_RESULTS = ("found", "passed", "not checked")


def state_text(state: Any) -> str:
    """The state of a run."""
    return known_text(state, _STATES)


def health_text(health: Any) -> str:
    """The status of a verdict."""
    return known_text(health, STATUSES)


def severity_text(severity: Any) -> str:
    """The severity of a case or incident."""
    return known_text(severity, _SEVERITIES)


def resolution_text(resolution: Any) -> str:
    """Why a case is over."""
    return known_text(resolution, _RESOLUTIONS)


def result_text(result: Any) -> str:
    """The result of a check."""
    return known_text(result, CHECK_RESULTS)


def problem_text(name: Any) -> str:
    """The name of a cause or detector, of which each has a runbook."""
    return OwnText(name) if read_runbook(str(name)) is not None else str(name)
