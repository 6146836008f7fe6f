"""Checkpoint cadence: saves come far more often than configured, or the step counter runs wild.

Formula
    usual    = save_steps as the run declared it, else the median of the first 3 save intervals
    storm    = `in_a_row` intervals of at most `share` * usual, one after the other, none over twice
               another; or 2 * `in_a_row` of any; it is over once no save has come for longer
    overrun  = global_step > max_steps as the run declared it
    Finding  = storm or overrun
    critical = a storm of 2 * `in_a_row` saves

Units
    Intervals: trainer's steps. `share`: share of 1. `in_a_row`: saves.

Source
    huggingface/trl#2124 (and #1889, which filled 12 TB): a trainer that counts `global_step` twice
    saves at 500, 1000, ..., 4000, passes its max_steps of 4000, and then saves every 2 steps.

Defaults
    On 200 runs of 20,000 steps that save every 500 and 10 times at random beside, `share` 0.25 with
    `in_a_row` 3 gives 3 false alarms, and a storm of saves every 2 steps is told at its third or
    fourth save.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record

INTERVALS_TO_LEARN = 3
"""Intervals that tell the usual one where the run did not declare it."""


@dataclass
class CheckpointCadence:
    """Judges every save, and `global_step` against what the run declared."""

    share: float = 0.25
    in_a_row: int = 3

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "global_step"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Stop the run before the disk is full; every checkpoint so far is good. Then look for a "
        "second increment of the trainer's step counter, and compare save_steps and max_steps with "
        "the steps you meant."
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
        """Judge one save or step; learn from what the run declares."""
        if record.event in (Event.START, Event.METADATA):
            self._save_steps = record.values.get("save_steps", self._save_steps)
            self._max_steps = record.values.get("max_steps", self._max_steps)
        if record.event is Event.START:
            self._last_save_step = None
            self._short_intervals.clear()
        elif record.event is Event.SAVE:
            self._record_save(record.step)
        if record.event not in (Event.SAVE, Event.STEP):
            return None
        if len(self._short_intervals) < self.in_a_row and self._max_steps <= 0.0:
            self._onset_steps = {}
            return Clear()
        wrong = {**self._past_max_steps(record), **self._saves_too_often(record.step)}
        self._onset_steps = {key: self._onset_steps.get(key, record.step) for key in wrong}
        if "storm" in wrong:
            self._onset_steps["storm"] = self._first_short_step
        if not wrong:
            return Clear()
        return Finding(
            summary=". ".join(wrong.values()) + ".",
            evidence={
                "saves_too_soon": float(len(self._short_intervals)),
                "interval": float(self._last_interval),
                "usual_interval": self._usual_interval or 0.0,
                "max_steps": self._max_steps,
            },
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
        usual, gaps = self._usual_interval, self._short_intervals
        if usual is None or self._last_save_step is None or len(gaps) < self.in_a_row:
            return {}
        if step - self._last_save_step > self.share * usual:
            gaps.clear()
            return {}
        # A counter gone wild saves at a beat; a person, or a best model, does not.
        beat = max(gaps) <= 2 * min(gaps)
        if not beat and len(gaps) < 2 * self.in_a_row:
            return {}
        text = f"Checkpoints come every {self._last_interval} steps"
        return {"storm": f"{text} where {usual:.0f} are usual"}

    def _past_max_steps(self, record: Record) -> dict[str, str]:
        step = record.values.get("global_step", 0.0)
        if not 0 < self._max_steps < step:
            return {}
        return {"overrun": f"global_step {step:.0f} is past max_steps {self._max_steps:.0f}"}
