"""Step regression: the trainer's step number goes back, or stays constant during training.

Formula
    back     = `global_step` is below the previous one in a run that was not resumed in between; it
               lasts until the number exceeds its previous maximum, or for `strides` records of
               another training in a log. A state that the training loaded since the previous
               step, or `sentinel.mark("resume")`, is a resume
    short    = back in a log by less than `strides` times its usual interval, and for two records or
               more; known once the number passed its maximum without a gap, and advanced
               `strides` records further
    stalled  = `global_step` is constant for more than max(`still`, 4 * usual) optimizer steps, with
               usual the most that one advance has taken so far
    critical = back, and the client continued to count optimizer steps: nothing was restarted
    warning  = back for two consecutive records of a log, by at least `strides` times its usual
               interval; or short; or stalled. In a log a resume leaves no other trace
    info     = back in a log again within `MIN_RECORDS_APART` records: several processes write it,
               or the run restarts often; or back to its first steps again: the log holds several
               trainings. Nothing is reported once the number has twice jumped from
               behind its maximum to above it: then two processes write the log in turns

Units
    `strides`: intervals of the log. `still`, `unknown`: optimizer steps. Before the first advance
    `unknown` of them are allowed, since one step of a rollout trainer takes many optimizer steps.

Source
    Schedules, checkpoint names and stopping depend on this number. The rule is exact, not
    statistical.

Defaults
    `still` 3 is the least that two records of the same step cannot reach. `strides` 4 ignores rows
    of several ranks that are written a little late: of two writers that are fewer intervals apart,
    neither advances so far before the number goes back again.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Scope, Severity
from sentinel.model.record import (
    METADATA,
    SEVERAL_WRITERS_KEY,
    START,
    STATE_LOADED_KEY,
    STEP,
    STEPS_STARTED_OVER_KEY,
    TRAINING,
    Record,
)

MAX_JUMPS = 2
"""Jumps from behind the maximum to above it that a log of one process can have by late rows."""

MIN_RECORDS_APART = 100
"""Records between two restarts of a log that are each worth a warning."""


@dataclass
class StepRegression(DetectorDefaults):
    """Evaluates `global_step` as logged by the trainer.

    A START in between excuses a jump; so do a training that the ranks report, its first step with
    `restarted_after_step`, and a state loaded at the previous step or later. A training that was
    recognised in a log by its steps is no excuse.
    """

    still: int = 3
    unknown: int = 256
    strides: int = 4

    signal = "global_step"
    scope = Scope.PROCESS
    remedy = (
        'If the run was resumed on purpose, declare it: call `sentinel.mark("resume")` before the '
        "first step after it, and check that no newer checkpoint is overwritten. Otherwise find "
        "the code that changes the trainer's step counter: the learning rate schedule, saving and "
        "stopping depend on it."
    )

    def __post_init__(self) -> None:
        self._last_step: float | None = None
        self._loaded_at: float | None = None
        self._highest_step = 0.0
        self._regressed_to = 0.0
        self._onset_step: int | None = None
        self._behind_count = 0
        self._is_new_training = self._has_several_trainings = False
        self._stride: float | None = None
        self._records_since_regression = MIN_RECORDS_APART
        self._beyond_count = 0
        self._jump_count = 0
        self._has_optimizer_steps = False
        self._optimizer_steps_at_advance: float | None = None
        self._usual_interval: float | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one step number."""
        is_step = record.event is STEP
        if "restarted_after_step" in record.values or (not is_step and _is_declared_start(record)):
            self.__post_init__()
        self._is_new_training |= record.event is TRAINING
        if record.event is METADATA:
            self._loaded_at = record.values.get(STATE_LOADED_KEY, self._loaded_at)
        step = record.values.get("global_step")
        if not is_step or step is None or step - step != 0.0:
            return None
        count = record.values.get("optimizer_steps")
        if self._is_resume(step):
            self.__post_init__()
        last, self._last_step = self._last_step, step
        self._add_step(last, step, record)
        waited = self._steps_since_advance(last, step, count)
        if self._onset_step is not None and last is not None:
            is_behind = step <= self._highest_step
            finding = (
                self._stay_behind(step) if is_behind else self._advance_beyond(step, last, record)
            )
            if finding is not None or self._onset_step is not None:
                return finding
        allowed = (
            self.unknown
            if self._usual_interval is None
            else max(self.still, 4 * self._usual_interval)
        )
        if waited > allowed:
            return self._stall_finding(step, waited, allowed)
        return CLEAR

    def _add_step(self, last: float | None, step: float, record: Record) -> None:
        """Begin a regression, or count what follows the last one."""
        if last is not None and step < last:
            if self._beyond_count:
                self._end_regression()
            self._onset_step = record.step
            self._has_optimizer_steps = "optimizer_steps" in record.values
            self._highest_step = max(self._highest_step, last)
            self._regressed_to = step
        elif self._onset_step is None:
            self._records_since_regression += 1
            if last is not None and step > last:
                self._stride = min(self._stride or step - last, step - last)

    def _is_resume(self, step: float) -> bool:
        """Whether the number goes back because the training loaded an earlier state."""
        last, loaded_at = self._last_step, self._loaded_at
        return last is not None and loaded_at is not None and step < last <= loaded_at

    def _is_reported(self) -> bool:
        """Whether the number is back for a reason other than the order of rows in a log."""
        if self._has_optimizer_steps:
            return True
        distance = self._highest_step - self._regressed_to
        return (
            self._behind_count > 1
            and self._jump_count < MAX_JUMPS
            and (self._stride is None or distance >= self.strides * self._stride)
        )

    def _stay_behind(self, step: float) -> Finding | None:
        """The finding of a regression; end it if another training is under way."""
        self._behind_count += 1
        if not self._is_reported():
            return None
        if self._is_new_training and self._behind_count > self.strides:
            self._end_regression(is_reported=True)
            self._highest_step = step
            return None
        return self._regression_finding(step)

    def _advance_beyond(self, step: float, last: float, record: Record) -> Finding | None:
        """End the regression, unless it is short and the number has to advance further."""
        self._beyond_count += 1
        if self._beyond_count == 1:
            is_jump = last + (self._stride or 0.0) < self._highest_step
            self._jump_count += is_jump
            is_reported = self._is_reported()
            is_late = self._behind_count < 2 or is_jump or self._jump_count >= MAX_JUMPS
            if is_reported or is_late:
                self._end_regression(is_reported=is_reported)
                return None
        if step == last or SEVERAL_WRITERS_KEY in record.attributes:
            # Two writers that are even log each step twice.
            self._end_regression()
        if self._beyond_count <= self.strides:
            return None
        finding = self._regression_finding(step)
        self._end_regression(is_reported=True)
        return finding

    def _end_regression(self, *, is_reported: bool = False) -> None:
        self._onset_step, self._behind_count, self._beyond_count = None, 0, 0
        self._has_several_trainings |= self._is_new_training
        self._is_new_training = False
        if is_reported:
            self._records_since_regression = 0

    def _steps_since_advance(
        self, last: float | None, step: float, optimizer_steps: float | None
    ) -> float:
        """Optimizer steps since the last change of the number; 0 if they are not counted."""
        if optimizer_steps is None:
            return 0.0
        if last == step and self._optimizer_steps_at_advance is not None:
            return optimizer_steps - self._optimizer_steps_at_advance
        if last is not None and step > last and self._optimizer_steps_at_advance is not None:
            self._usual_interval = max(
                self._usual_interval or 0.0,
                (optimizer_steps - self._optimizer_steps_at_advance) / (step - last),
            )
        self._optimizer_steps_at_advance = optimizer_steps
        return 0.0

    def _regression_finding(self, step: float) -> Finding:
        if self._has_optimizer_steps:
            severity, restart = Severity.CRITICAL, "without a restart"
        else:
            is_known = self._is_new_training and self._has_several_trainings
            is_repeated = is_known or self._records_since_regression < MIN_RECORDS_APART
            severity = Severity.INFO if is_repeated else Severity.WARNING
            restart = "without a recorded restart"
        return Finding(
            summary=f"The trainer's step counter went back from {self._highest_step:.0f} to "
            f"{self._regressed_to:.0f} {restart}; it is {step:.0f} now.",
            evidence={
                "global_step": step,
                "highest_global_step": self._highest_step,
                "global_step_after_regression": self._regressed_to,
            },
            severity=None if severity is self.severity else severity,
            onset_step=self._onset_step,
            # The onset is exact: there is nothing to estimate from the values of the signal.
            signal=self.signal,
        )

    def _stall_finding(self, step: float, waited: float, allowed: float) -> Finding:
        return Finding(
            summary=f"The trainer's step counter has stayed at {step:.0f} for {waited:.0f} "
            "optimizer steps.",
            evidence={
                "global_step": step,
                "optimizer_steps_since_advance": waited,
                "allowed_optimizer_steps": allowed,
            },
        )


def _is_declared_start(record: Record) -> bool:
    """Whether the step number may go back, since an attempt or another training begins."""
    if record.event is TRAINING:
        return STEPS_STARTED_OVER_KEY not in record.values
    return record.event is START
