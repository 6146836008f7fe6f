"""Step regression: the trainer's own step number goes back, or stands still while it trains.

Formula
    back     = `global_step` is below the one before, in a run that was not resumed in between; it
               lasts until the number is past its old height
    stalled  = `global_step` is the same for more than max(`still`, 4 * usual) optimizer steps, with
               usual the most that it has taken for one advance so far
    critical = back, and the hook went on counting optimizer steps: nothing was restarted
    warning  = back for two records in a row in a log, where a resume leaves no other trace and one
               row may have been written late; or stalled

Units
    `still`, `unknown`: optimizer steps. Before the number has advanced once, `unknown` of them are
    allowed, since one step of a rollout trainer takes many optimizer steps.

Source
    Schedules, checkpoint names and stopping all hang on this number. Exact, not statistical.

Defaults
    `still` 3 is the least that no pair of records of one step can reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sentinel.model.finding import Calm, Finding, Opinion, Severity
from sentinel.model.record import Event, Record


@dataclass
class StepRegression:
    """Judges `global_step` as the trainer declares it.

    A START in between excuses a jump; and so does `began_after`, with which the first step of
    another training in the same run tells what it goes on from.
    """

    still: int = 3
    unknown: int = 256

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "global_step"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "If the run was resumed, declare it, and check that no checkpoint newer than the step gets "
        "overwritten. Otherwise find who else writes the trainer's step counter: the learning "
        "rate schedule, saving and stopping all follow it."
    )

    def __post_init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self._last: float | None = None
        self._highest = 0.0
        self._onset: int | None = None
        self._behind = 0
        self._counting = False
        self._advanced_at: float | None = None
        self._usual: float | None = None

    def update(self, record: Record) -> Opinion:
        """Judge one declared step number."""
        if record.event is Event.START or "began_after" in record.values:
            self._restart()
        step = record.values.get("global_step")
        if record.event is not Event.STEP or step is None or step - step != 0.0:
            return None
        count = record.values.get("optimizer_steps")
        last, self._last = self._last, step
        if last is not None and step < last:
            self._onset, self._counting = record.step, count is not None
            self._highest = max(self._highest, last)
        waited = self._waited(last, step, count)
        if self._onset is not None and step <= self._highest:
            self._behind += 1
            return self._back(step) if self._counting or self._behind > 1 else None
        self._onset, self._behind = None, 0
        allowed = self.unknown if self._usual is None else max(self.still, 4 * self._usual)
        if waited > allowed:
            return self._stalled(step, waited, allowed)
        return Calm()

    def _waited(self, last: float | None, step: float, count: float | None) -> float:
        """Optimizer steps since the number last moved; 0 where nobody counts them."""
        if count is None:
            return 0.0
        if last == step and self._advanced_at is not None:
            return count - self._advanced_at
        if last is not None and step > last and self._advanced_at is not None:
            self._usual = max(self._usual or 0.0, (count - self._advanced_at) / (step - last))
        self._advanced_at = count
        return 0.0

    def _back(self, step: float) -> Finding:
        return Finding(
            summary=f"global_step is {step:.0f} after {self._highest:.0f}, with no resume between.",
            evidence={"global_step": step, "highest": self._highest},
            severity=Severity.CRITICAL if self._counting else None,
            onset_step=self._onset,
        )

    def _stalled(self, step: float, waited: float, allowed: float) -> Finding:
        return Finding(
            summary=f"global_step stands at {step:.0f} through {waited:.0f} optimizer steps.",
            evidence={"global_step": step, "optimizer_steps": waited, "allowed": allowed},
        )
