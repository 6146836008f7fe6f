"""Frequent checkpoints: saves are far too frequent, or the step counter has passed max_steps.

Formula
    usual    = save_steps as declared by the run, otherwise the median of the first 3 save intervals
    storm    = `in_a_row` consecutive intervals of at most `share` * usual, none more than twice as
               long as another; or 2 * `in_a_row` such intervals of any length. It ends once no save
               has come for longer than `share` * usual
    overrun  = global_step > max_steps as declared by the run
    Finding  = storm or overrun
    critical = a storm of 2 * `in_a_row` saves

Units
    Intervals: trainer steps. `share`: fraction of 1. `in_a_row`: saves.

Source
    huggingface/trl#2124 (and #1889, which filled 12 TB): a trainer that increments `global_step`
    twice per step saves at 500, 1000, ..., 4000, passes its max_steps of 4000, and then saves every
    2 steps.

Defaults
    On 200 runs of 20,000 steps that save every 500 steps and at 10 random further steps, `share`
    0.25 and `in_a_row` 3 give 3 false alarms. A storm of saves every 2 steps is found at its third
    or fourth save.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Scope, Severity
from sentinel.model.record import METADATA, SAVE, START, STEP, Record

INTERVALS_TO_LEARN = 3
"""Intervals whose median is the usual interval if the run did not declare one."""


@dataclass
class CheckpointCadence(DetectorDefaults):
    """Evaluates every save, and `global_step` against the declared max_steps."""

    share: float = 0.25
    in_a_row: int = 3

    signal = "global_step"
    scope = Scope.TRAINING
    remedy = (
        "Stop the run before the disk is full. Compare {save interval} and {maximum number of "
        "steps} with the intended values. Look for a second increment of the trainer's step "
        "counter."
    )

    def __post_init__(self) -> None:
        self._save_steps = 0.0
        self._max_steps = 0.0
        self._first_intervals: list[int] = []
        self._last_save_step: int | None = None
        self._short_intervals: list[int] = []
        self._first_short_step = 0
        self._last_interval = 0
        self._onset_steps: dict[str, int] = {}

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate a save or a step, or read the declared settings."""
        if record.event in (START, METADATA):
            self._save_steps = record.values.get("save_steps", self._save_steps)
            self._max_steps = record.values.get("max_steps", self._max_steps)
        if record.event is START:
            self._last_save_step = None
            self._short_intervals.clear()
        elif record.event is SAVE:
            self._record_save(record.step)
        if record.event not in (SAVE, STEP):
            return None
        if len(self._short_intervals) < self.in_a_row and self._max_steps <= 0.0:
            self._onset_steps = {}
            return CLEAR
        problems = {**self._past_max_steps(record), **self._saves_too_often(record.step)}
        self._onset_steps = {key: self._onset_steps.get(key, record.step) for key in problems}
        if "storm" in problems:
            self._onset_steps["storm"] = self._first_short_step
        if not problems:
            return CLEAR
        evidence = {
            "early_saves_in_a_row": float(len(self._short_intervals)),
            "save_interval_steps": float(self._last_interval),
            "usual_save_interval_steps": self._usual_interval or 0.0,
            "last_planned_step": self._max_steps,
        }
        return Finding(
            summary=". ".join(problems.values()) + ".",
            evidence={name: value for name, value in evidence.items() if value},
            severity=Severity.CRITICAL if len(self._short_intervals) == 2 * self.in_a_row else None,
            onset_step=min(self._onset_steps.values()),
        )

    @property
    def _usual_interval(self) -> float | None:
        if self._save_steps >= 1:
            return self._save_steps
        return (
            median(self._first_intervals)
            if len(self._first_intervals) == INTERVALS_TO_LEARN
            else None
        )

    def _record_save(self, step: int) -> None:
        before, self._last_save_step = self._last_save_step, step
        if before is None or step <= before:
            return
        self._last_interval = step - before
        usual = self._usual_interval
        if len(self._first_intervals) < INTERVALS_TO_LEARN:
            self._first_intervals.append(self._last_interval)
        if usual is None or self._last_interval > self.share * usual:
            self._short_intervals.clear()
            return
        if not self._short_intervals:
            self._first_short_step = step
        self._short_intervals = [*self._short_intervals, self._last_interval][-2 * self.in_a_row :]

    def _saves_too_often(self, step: int) -> dict[str, str]:
        usual, intervals = self._usual_interval, self._short_intervals
        if usual is None or self._last_save_step is None or len(intervals) < self.in_a_row:
            return {}
        if step - self._last_save_step > self.share * usual:
            intervals.clear()
            return {}
        # A faulty counter saves at regular intervals; a user, or a new best model, does not.
        is_regular = max(intervals) <= 2 * min(intervals)
        if not is_regular and len(intervals) < 2 * self.in_a_row:
            return {}
        interval = "step" if self._last_interval == 1 else f"{self._last_interval} steps"
        text = f"Checkpoints are saved every {interval}"
        return {"storm": f"{text} instead of every {usual:.0f} steps"}

    def _past_max_steps(self, record: Record) -> dict[str, str]:
        step = record.values.get("global_step", 0.0)
        if not 0 < self._max_steps < step:
            return {}
        return {
            "overrun": f"The trainer's step counter is at {step:.0f}, past the maximum of "
            f"{self._max_steps:.0f}"
        }
