"""How far a run came and how its metrics developed, as one line of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sentinel.model.clean_text import clean
from sentinel.model.json_safe import JsonObject
from sentinel.model.quantity_text import format_duration, format_number
from sentinel.report.comparison import run_seconds

_MAX_RESULTS = 3
_MAX_CHARS = 100
_SHOWN_SIGNALS = ("loss", "reward", "eval/loss", "eval_loss", "accuracy", "eval/accuracy")
"""The results that are named."""
_END_TEXTS = {
    "running": "It is running",
    "starting": "It is starting",
    "stalled": "It is stalled",
    "finished": "It ended",
    "failed": "It failed",
    "died": "It died",
    "unfinished": "Its end was not recorded; its last record is",
}


def results_text(state: Mapping[str, Any], results: Sequence[JsonObject]) -> str:
    """How far the run came, in which time, and how its first metrics developed.

    `state` is that of `/api/run`, `results` are by metric. Empty without a step.
    """
    step = state.get("step")
    if step is None:
        return ""
    name = str(state.get("state"))
    start = _END_TEXTS.get(name, f"It is {clean(name, _MAX_CHARS)}")
    seconds = run_seconds(state)
    lasted = f" after {format_duration(seconds)}" if seconds is not None else ""
    progress = f"{start} at step {step:,}{lasted}."
    changes = [
        f"{each['label']} from {format_number(each['first'])} to {format_number(each['last'])}"
        for each in results
        if each["signal"] in _SHOWN_SIGNALS and None not in (each["first"], each["last"])
    ]
    return f"{progress} {', '.join(changes[:_MAX_RESULTS])}.".replace(" .", "").strip()
