"""Learning rate anomaly: the schedule was lost on resume, is never stepped, or has ended too early.

Formula
    reset    = after a START the rate differs by more than `factor` from its earlier value at that
               step, and by more than a tenth of the highest rate; reported for 16 records
    stuck    = the rate has been constant since before half of the declared warm-up, for `points`
               values, and twice the warm-up has passed
    dead     = the rate has been 0 for `points` values and a twentieth of the steps so far, or for
               `points` values from the first step on; not in a log that rounds small rates to 0,
               which has rates of one digit only, or no value with more than three decimals, or
               whose loss or reward moves at a rate of 0
    Finding  = reset, stuck or dead

Units
    The unit of `learning_rate` is irrelevant. `factor`: plain factor. `points`: logged values.

Source
    A trainer that resumes without the scheduler's state repeats the warm-up; one that does not step
    its scheduler keeps the first value. The rule is exact, not statistical. A start that declares
    another learning rate than before, or that begins another training, is no reset.

Defaults
    On 62 public logs with a learning rate (constant, linear, cosine, rounded to eight decimals and
    ending at 0) there is no alarm. `factor` 2 is far more than a schedule changes between two
    logged values except in its last steps, which the tenth excludes. `points` 64 ignores logs that
    round the last steps of a schedule to 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, inf, isfinite
from statistics import mean, pstdev

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Scope
from sentinel.model.quantity_text import distinct_texts
from sentinel.model.record import METADATA, START, STEP, Record
from sentinel.stats.downsampled_history import DownsampledHistory
from sentinel.stats.first_and_last import FirstAndLast

RESET_FINDING_RECORDS = 16
"""Records for which a reset is reported."""

LEVEL_VALUES = 16
"""Values in a level of loss or reward."""

MOVED_ERRORS = 6.0
"""Standard errors by which two levels differ that are not the same."""

MAX_COARSE_RATIO = 50.0
"""Ratio of the highest to the smallest rate of a log that rounds to a few decimals."""

LOGGED_DECIMALS = 3
"""Decimals of a log that shows rates below 5e-4 as 0."""

MIN_FRACTIONS = 64
"""Values that are no whole numbers, all of so few decimals, that show that a log rounds."""


@dataclass
class LearningRateAnomaly(DetectorDefaults):
    """Evaluates `learning_rate` against its history and the declared settings."""

    factor: float = 2.0
    points: int = 64

    signal = "learning_rate"
    scope = Scope.TRAINING
    remedy = (
        "Save and load the state of the scheduler with the checkpoint. Step the scheduler once "
        "per optimizer step. Check that {maximum number of steps} is the number of steps that "
        "the scheduler was created for."
    )

    def __post_init__(self) -> None:
        self._warmup_steps = 0.0
        self._max_steps = 0.0
        self._declared_rate: float | None = None
        self._levels = {name: FirstAndLast(LEVEL_VALUES) for name in ("loss", "reward")}
        self._fraction_count: int | None = 0
        """Values that are no whole numbers; None once one has more than the decimals of a log."""
        self._clear_history()

    def _clear_history(self) -> None:
        self._history = DownsampledHistory()
        self._peak_rate = 0.0
        self._smallest_rate = inf
        self._has_resumed = False
        self._reset_finding: Finding | None = None
        self._reset_records_left = 0
        self._first_rate: float | None = None
        self._first_step = 0
        self._last_step = 0
        self._unchanged_count = 0
        self._zero_count = 0
        self._zero_since_step = 0

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one rate, or read the declared settings."""
        if record.event in (START, METADATA):
            self._read_config(record)
        if record.event is not STEP:
            return None
        for name, levels in self._levels.items():
            if name in record.values and isfinite(value := record.values[name]):
                levels.add(value)
        if self._fraction_count is not None and self._fraction_count < MIN_FRACTIONS:
            self._update_fractions(record, self._fraction_count)
        rate = record.values.get("learning_rate")
        if rate is None or not 0.0 <= rate < inf:
            return None
        if "restarted_after_step" in record.values:
            self._clear_history()
        if self._has_resumed:
            self._compare_with_history(rate, record.step)
        self._append(rate, record.step)
        return self._evaluate(rate, record.step)

    def _update_fractions(self, record: Record, count: int) -> None:
        for value in record.values.values():
            if value - value == 0.0 and value % 1.0:
                if round(value, LOGGED_DECIMALS) != value:
                    self._fraction_count = None
                    return
                count += 1
        self._fraction_count = count

    def _has_moved(self, name: str) -> bool:
        """Whether the latest level of a signal differs from its first."""
        levels = self._levels[name]
        if not levels.is_full:
            return False
        error = hypot(pstdev(levels.first), pstdev(levels.last)) / LEVEL_VALUES**0.5
        return bool(abs(mean(levels.last) - mean(levels.first)) > MOVED_ERRORS * error)

    def _is_rounded(self) -> bool:
        """Whether the log rounds rates to a few decimals, so that a small one is logged as 0."""
        if self._peak_rate == 0.0:
            has_few_decimals = (self._fraction_count or 0) >= MIN_FRACTIONS
            return has_few_decimals or self._has_moved("loss") or self._has_moved("reward")
        smallest = self._smallest_rate
        is_of_one_digit = float(f"{smallest:.0e}") == smallest
        return is_of_one_digit and 2.0 * smallest <= self._peak_rate <= MAX_COARSE_RATIO * smallest

    def _read_config(self, record: Record) -> None:
        values = record.values
        self._max_steps = values.get("max_steps", self._max_steps)
        warmup = values.get("warmup_steps", 0.0) or values.get("warmup_ratio", 0.0)
        # Below 1 it is a fraction of the run.
        warmup = warmup * self._max_steps if warmup < 1.0 else warmup
        self._warmup_steps = warmup if 0.0 < warmup < inf else self._warmup_steps
        if record.event is METADATA:
            return
        declared = values.get("learning_rate")
        if declared != self._declared_rate:
            self._clear_history()
        self._declared_rate, self._has_resumed = declared, True

    def _compare_with_history(self, rate: float, step: int) -> None:
        """Compare the first rate after a START with the earlier rate at that step."""
        self._has_resumed = False
        before = self._history.value_at(step)
        # Far beyond the known steps, the schedule may have any value.
        last_known_step = self._last_step + max(16, (self._last_step - self._first_step) // 10)
        if before is None or step > last_known_step:
            self._clear_history()
            return
        self._history.discard_from(step)
        differs = max(rate, before) > self.factor * min(rate, before)
        if differs and abs(rate - before) > 0.1 * max(self._peak_rate, rate):
            new, old = distinct_texts(rate, before)
            self._reset_finding = Finding(
                summary=f"The learning rate was {new} after the restart at step {step}; before, it "
                f"was {old} at that step.",
                evidence={
                    "learning_rate_after_restart": rate,
                    "learning_rate_before_restart": before,
                },
                onset_step=step,
            )
            self._reset_records_left = RESET_FINDING_RECORDS

    def _append(self, rate: float, step: int) -> None:
        self._history.add(step, rate)
        self._last_step = step
        self._peak_rate = max(self._peak_rate, rate)
        if 0.0 < rate < self._smallest_rate:
            self._smallest_rate = rate
        if self._first_rate is None:
            self._first_rate, self._first_step = rate, step
        # Once the rate has changed, a constant stretch is part of the schedule.
        has_changed = rate != self._first_rate or self._unchanged_count < 0
        self._unchanged_count = -1 if has_changed else self._unchanged_count + 1
        if rate == 0.0 and self._zero_count == 0:
            self._zero_since_step = step
        self._zero_count = self._zero_count + 1 if rate == 0.0 else 0

    def _evaluate(self, rate: float, step: int) -> DetectorOutput:
        if self._zero_count >= self.points and self._is_dead(step) and not self._is_rounded():
            return Finding(
                summary=f"The learning rate has been 0 for {self._zero_count} logged values.",
                evidence={"learning_rate": 0.0, "highest_learning_rate": self._peak_rate},
                onset_step=self._zero_since_step,
            )
        if self._reset_records_left:
            self._reset_records_left -= 1
            return self._reset_finding
        if self._is_stuck(step):
            return Finding(
                summary=f"The learning rate has stayed at {rate:.3g} since step "
                f"{self._first_step}, although a warm-up of {self._warmup_steps:.0f} steps was "
                "declared.",
                evidence={"learning_rate": rate, "warmup_steps": self._warmup_steps},
                onset_step=self._first_step,
            )
        return CLEAR

    def _is_dead(self, step: int) -> bool:
        zero_steps, all_steps = step - self._zero_since_step, step - self._first_step
        return self._peak_rate == 0.0 or 20 * zero_steps >= all_steps

    def _is_stuck(self, step: int) -> bool:
        return (
            self._unchanged_count >= self.points
            and self._first_step < self._warmup_steps / 2
            and step > 2 * self._warmup_steps
        )
