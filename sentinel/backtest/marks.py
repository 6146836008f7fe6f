"""What people think of the notifications of a run: which cases were useful, which false alarms."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from sentinel.backtest.run_replay import SentNotification
from sentinel.store.run_reader import RunReader
from sentinel.transport.paths import DATABASE_NAME


@dataclass(frozen=True, slots=True)
class StepRange:
    """The steps of a fault, from its onset to its end; `last` is infinite if it has none.

    >>> 20 in StepRange(10, 20), 21 in StepRange(10, 20)
    (True, False)
    """

    first: float = -inf
    last: float = inf

    def __contains__(self, step: int) -> bool:
        return self.first <= step <= self.last

    def first_of(self, notifications: Sequence[SentNotification]) -> int | None:
        """The step of the first notification in it."""
        steps = [each.step for each in notifications if each.step in self]
        return min(steps, default=None)


@dataclass(frozen=True, slots=True)
class MarkedCase:
    """A case of a stored run that a person marked as useful, or else as a false alarm."""

    name: str
    is_useful: bool
    steps: StepRange


@dataclass(frozen=True, slots=True)
class RunMarks:
    """The marked cases of a run; complete if it has cases and each of them is marked."""

    cases: tuple[MarkedCase, ...] = ()
    is_complete: bool = False

    @property
    def useful_steps(self) -> tuple[StepRange, ...]:
        """The steps of the cases that were useful."""
        return tuple(each.steps for each in self.cases if each.is_useful)


NO_MARKS = RunMarks()


def read_marks(path: Path) -> RunMarks:
    """The marks of a run whose database is at `path`; none of a log, or if it cannot be read."""
    if path.name != DATABASE_NAME:
        return NO_MARKS
    try:
        cases = RunReader(path).cases(has_ages=False)
    except (OSError, ValueError, RuntimeError, sqlite3.Error):
        # Its replay reports why.
        return NO_MARKS
    marked = tuple(
        MarkedCase(
            case["name"],
            case["feedback"]["mark"] == "useful",
            StepRange(
                case["onset_step"],
                inf if case["resolved_step"] is None else case["resolved_step"],
            ),
        )
        for case in cases
        if case["feedback"] is not None
    )
    return RunMarks(marked, 0 < len(marked) == len(cases))
