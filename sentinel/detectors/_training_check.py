"""Detectors of the errors that checks in the trainer report; see `sentinel.client.checks`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from sentinel.model.finding import (
    CLEAR,
    Clear,
    DetectorDefaults,
    DetectorOutput,
    Finding,
    Scope,
    Severity,
)
from sentinel.model.record import CHECK, CHECK_KEY, PROBLEM_KEY, Event, Record

STEPS_AGO_KEY = "steps_ago"
"""Evidence: steps since the problem occurred, where the check knows that."""


class Problem(NamedTuple):
    """What a check may find: a summary as a format of its evidence, a remedy and a severity."""

    summary: str
    remedy: str
    severity: Severity = Severity.WARNING


@dataclass
class ReportedCheck(DetectorDefaults):
    """Turns the reports of one check into findings.

    `check` is its name, `problems` what it may find, `unreported` why there may be no report.
    """

    check: ClassVar[str]
    problems: ClassVar[Mapping[str, Problem]]
    unreported: ClassVar[str] = "The check had nothing to judge."
    events: ClassVar[frozenset[Event]] = frozenset({CHECK})
    scope: ClassVar[Scope] = Scope.TRAINING

    def __post_init__(self) -> None:
        self._has_passed = False
        self._problem_rank: float | None = None
        """The rank that reported the open problem."""

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one report."""
        if record.event is not CHECK or record.attributes.get(CHECK_KEY) != self.check:
            return None
        name = record.attributes.get(PROBLEM_KEY)
        rank = record.values.get("rank", 0.0)
        if not name:
            return self._pass(rank)
        problem = self.problems.get(name)
        if problem is None:
            return None
        self._problem_rank = rank
        evidence: dict[str, float | str] = {**record.values, **record.attributes}
        for key in ("rank", CHECK_KEY, PROBLEM_KEY):
            evidence.pop(key, None)
        # A training that never passed the check has been wrong since its first step.
        onset = record.step if self._has_passed else first_step(record)
        if STEPS_AGO_KEY in evidence:
            onset = max(first_step(record), record.step - int(record.values[STEPS_AGO_KEY]))
            del evidence[STEPS_AGO_KEY]
        return Finding(
            summary=problem.summary.format_map(evidence),
            evidence=evidence,
            severity=problem.severity,
            onset_step=onset,
            remedy=problem.remedy,
        )

    def _pass(self, rank: float) -> DetectorOutput:
        """The check passed on that rank; another rank's problem stays."""
        if self._problem_rank is None:
            self._has_passed = True
            return CLEAR
        if rank != self._problem_rank:
            return None
        self._has_passed, self._problem_rank = True, None
        return Clear(withdraws=True)


def first_step(record: Record) -> int:
    """The step before the first one of this attempt."""
    return max(0, record.step - record.step_index)
