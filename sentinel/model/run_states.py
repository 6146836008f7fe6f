"""The states of a run: those of its process, and those of which only the storage is known."""

from __future__ import annotations

ACTIVE_STATES = frozenset({"starting", "running", "stalled"})
FAILED_STATES = frozenset({"failed", "died"})
UNFINISHED = "unfinished"
"""State of a run that has no agent, and no outcome."""
STATES_WITHOUT_OUTCOME = ACTIVE_STATES | {UNFINISHED}
"""States of runs of which no end is known."""
