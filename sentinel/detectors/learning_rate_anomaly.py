"""Learning rate anomaly: the schedule was lost on resume, never runs, or has come to nothing.

Formula
    reset    = after a START the rate is over `factor` times what it was at that step, or less than
               its 1/`factor`, and off by over a tenth of the highest rate; told for 16 records
    stuck    = the rate has one value since before half of the declared warm-up, and twice the
               warm-up and `points` values are over
    dead     = the rate is 0 for `points` values and a twentieth of the steps so far, or has been
               for `points` values from the first step on
    Finding  = reset, stuck or dead

Units
    Nothing depends on the unit of `learning_rate`. `factor`: plain factor. `points`: logged values.

Source
    A trainer that resumes without its scheduler's state begins the warm-up anew; one that is not
    handed its scheduler never leaves the first value. Exact, not statistical. A start that declares
    another learning rate than the one before, or begins another training, is no reset.

Defaults
    On 62 public logs with a learning rate (constant, linear, cosine, rounded to eight decimals and
    ending at 0) they give no alarm. `factor` 2 is well over what a schedule moves by between two
    logged values, but in its last steps, which the tenth leaves out. `points` 64 lets a log that
    rounds the last steps of a schedule to 0 pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record
from sentinel.stats.downsampled_history import DownsampledHistory

RESET_FINDING_RECORDS = 16
"""Records for which a reset is told."""


@dataclass
class LearningRateAnomaly:
    """Judges `learning_rate` against its own past and what the run declared."""

    factor: float = 2.0
    points: int = 64

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "learning_rate"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Check that the scheduler's state is saved and loaded with the checkpoint, that the "
        "scheduler is stepped once per optimizer step, and that the number of steps it was made "
        "for (max_steps, num_training_steps) is that of the run."
    )

    def __post_init__(self) -> None:
        self._warmup_steps = 0.0
        self._max_steps = 0.0
        self._declared_rate: float | None = None
        self._clear_history()

    def _clear_history(self) -> None:
        self._history = DownsampledHistory()
        self._peak_rate = 0.0
        self._has_resumed = False
        self._reset_evidence: dict[str, float] = {}
        self._reset_step = 0
        self._reset_records_left = 0
        self._first_rate: float | None = None
        self._first_step = 0
        self._last_step = 0
        self._unchanged_count = 0
        self._zero_count = 0
        self._zero_since_step = 0

    def update(self, record: Record) -> DetectorOutput:
        """Judge one rate; learn from what the run declares."""
        if record.event in (Event.START, Event.METADATA):
            self._read_config(record)
        rate = record.values.get("learning_rate")
        if record.event is not Event.STEP or rate is None or not 0.0 <= rate < inf:
            return None
        if "restarted_after_step" in record.values:
            self._clear_history()
        if self._has_resumed:
            self._compare_with_history(rate, record.step)
        self._append(rate, record.step)
        return self._evaluate(rate, record.step)

    def _read_config(self, record: Record) -> None:
        values = record.values
        self._max_steps = values.get("max_steps", self._max_steps)
        warmup = values.get("warmup_steps", 0.0) or values.get("warmup_ratio", 0.0)
        # Below one it is a share of the run.
        warmup = warmup * self._max_steps if warmup < 1.0 else warmup
        self._warmup_steps = warmup if 0.0 < warmup < inf else self._warmup_steps
        if record.event is Event.METADATA:
            return
        declared = values.get("learning_rate")
        if declared != self._declared_rate:
            self._clear_history()
        self._declared_rate, self._has_resumed = declared, True

    def _compare_with_history(self, rate: float, step: int) -> None:
        """Hold the first rate after a START against the one at that step before it."""
        self._has_resumed = False
        was = self._history.value_at(step)
        # Far beyond what was seen, the schedule may have gone anywhere.
        known = self._last_step + max(16, (self._last_step - self._first_step) // 10)
        if was is None or step > known:
            self._clear_history()
            return
        self._history.discard_from(step)
        off = max(rate, was) > self.factor * min(rate, was)
        if off and abs(rate - was) > 0.1 * max(self._peak_rate, rate):
            self._reset_evidence = {"learning_rate": rate, "before": was}
            self._reset_step, self._reset_records_left = step, RESET_FINDING_RECORDS

    def _append(self, rate: float, step: int) -> None:
        self._history.add(step, rate)
        self._last_step = step
        self._peak_rate = max(self._peak_rate, rate)
        if self._first_rate is None:
            self._first_rate, self._first_step = rate, step
        # Once it has moved it runs, and a constant stretch is part of the schedule.
        moves = rate != self._first_rate or self._unchanged_count < 0
        self._unchanged_count = -1 if moves else self._unchanged_count + 1
        if rate == 0.0 and self._zero_count == 0:
            self._zero_since_step = step
        self._zero_count = self._zero_count + 1 if rate == 0.0 else 0

    def _evaluate(self, rate: float, step: int) -> DetectorOutput:
        if self._zero_count >= self.points and self._is_dead(step):
            return Finding(
                summary=f"The learning rate has been 0 for {self._zero_count} logged values.",
                evidence={"learning_rate": 0.0, "highest": self._peak_rate},
                onset_step=self._zero_since_step,
            )
        if self._reset_records_left:
            self._reset_records_left -= 1
            was = self._reset_evidence["before"]
            return Finding(
                summary=f"The learning rate is {self._reset_evidence['learning_rate']:.3g} after the "
                f"restart at step {self._reset_step}, where it had been {was:.3g}.",
                evidence=dict(self._reset_evidence),
                onset_step=self._reset_step,
            )
        if self._is_stuck(step):
            return Finding(
                summary=f"The learning rate stands at {rate:.3g} through a warm-up of "
                f"{self._warmup_steps:.0f} steps and beyond.",
                evidence={"learning_rate": rate, "warmup_steps": self._warmup_steps},
                onset_step=self._first_step,
            )
        return Clear()

    def _is_dead(self, step: int) -> bool:
        gone, so_far = step - self._zero_since_step, step - self._first_step
        return self._peak_rate == 0.0 or 20 * gone >= so_far

    def _is_stuck(self, step: int) -> bool:
        early = self._first_step < self._warmup_steps / 2
        return early and self._unchanged_count >= self.points and step > 2 * self._warmup_steps
