"""What a process waits for in the verdict on a run, and how the wait ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from sentinel.model.clean_text import clean
from sentinel.model.nearest_name import nearest_name
from sentinel.store.verdict import ENDED, ENDED_BADLY, UNHEALTHY

CONDITIONS = ("unhealthy", "finished", "case-resolved", "step=N")
MAX_CONDITIONS = 8
_STEP, _MAX_DIGITS = "step=", 18


class Outcome(Enum):
    """How a wait ended; the value of each is a word for programs."""

    REACHED = "reached"
    """A condition holds."""
    UNHEALTHY = "unhealthy"
    """The run is unhealthy, or ended badly, and something else was waited for as well."""
    ENDED = "ended"
    """The run is over, and no condition can hold any more."""
    TIMEOUT = "timeout"


class WaitEnd(NamedTuple):
    """Why a wait ends; `condition` is the one that holds, empty without one."""

    outcome: Outcome
    condition: str = ""


def check_conditions(conditions: Sequence[str]) -> None:
    """Raise ValueError if one of the conditions is none of `CONDITIONS`, or there are too many."""
    if not 1 <= len(conditions) <= MAX_CONDITIONS:
        raise ValueError(f"give 1 to {MAX_CONDITIONS} conditions.")
    for text in conditions:
        if text in CONDITIONS[:-1] or _step_of(text) is not None:
            continue
        near = nearest_name(text, CONDITIONS)
        hint = f" Did you mean {near!r}?" if near else ""
        raise ValueError(
            f"{clean(repr(text), 60)} is no condition.{hint} Valid: {', '.join(CONDITIONS)}."
        )


def find_end(conditions: Sequence[str], verdict: Mapping[str, Any]) -> WaitEnd | None:
    """How a wait for any of the conditions ends with that verdict; None if it goes on."""
    condition = next((each for each in conditions if _holds(each, verdict)), "")
    if not condition:
        return WaitEnd(Outcome.ENDED) if verdict["status"] in ENDED else None
    is_bad_end = condition == "finished" and verdict["status"] == ENDED_BADLY
    is_one_of_several = condition == "unhealthy" and {*conditions} != {condition}
    outcome = Outcome.UNHEALTHY if is_bad_end or is_one_of_several else Outcome.REACHED
    return WaitEnd(outcome, condition)


def _holds(condition: str, verdict: Mapping[str, Any]) -> bool:
    if condition == "unhealthy":
        return verdict["status"] in UNHEALTHY
    if condition == "finished":
        return verdict["status"] in ENDED
    if condition == "case-resolved":
        return verdict["case"] is None
    step, wanted = verdict["step"], _step_of(condition)
    return step is not None and wanted is not None and step >= wanted


def _step_of(condition: str) -> int | None:
    number = condition.removeprefix(_STEP)
    is_number = number.isascii() and number.isdecimal() and len(number) <= _MAX_DIGITS
    return int(number) if condition.startswith(_STEP) and is_number else None
