"""Changed log cadence: the log has rows much more or less often than before.

Formula
    interval = steps from one row of the log to the next
    usual    = the interval that `proven` rows in a row had
    Finding  = `in_a_row` rows in a row have another interval, the same for all, of at most half or
               at least twice the usual; after `proven` rows it is the usual one
    A row at the step of the row before is part of it, and a step that goes back begins anew. Runs
    that the client records have a record for each step, and are not evaluated.

Units
    `proven`, `in_a_row`: rows.

Source
    huggingface/trl#2124: behind its last planned step, a trainer logged, saved and evaluated at
    every second step instead of every 500. A log that grows many times faster fills a disk, and one
    with fewer rows than before hides what happens between them. It may be a setting that was
    changed on purpose, so it is info.

Defaults
    `in_a_row` 4 is more than the rows at the end of an epoch and around an evaluation. `proven` 32:
    a log without a rhythm is not evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Scope, Severity
from sentinel.model.record import Event, Record

MIN_FACTOR = 2.0
"""Factor between two intervals that changes the size of a log, or what it shows."""


@dataclass
class LogCadence(DetectorDefaults):
    """Evaluates the distances of `global_step` between rows."""

    proven: int = 32
    in_a_row: int = 4

    events = frozenset({Event.START, Event.STEP})
    steps_with = frozenset({"global_step"})
    signal = "global_step"
    severity = Severity.INFO
    scope = Scope.TRAINING
    remedy = (
        "Compare the logging interval of the trainer with the intended one, and the step with the "
        "last planned step. Look at the growth of the log and of the checkpoints on the disk."
    )

    def __post_init__(self) -> None:
        self._last_step: float | None = None
        self._usual = 0.0
        self._interval, self._count, self._since = 0.0, 0, 0

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate the step of one row."""
        step = record.values.get("global_step")
        last, self._last_step = self._last_step, step
        if record.event is not Event.STEP or step is None or "optimizer_steps" in record.values:
            self.__post_init__()
            return None
        if last is None or not 0.0 < step - last < 1e15:
            if last is not None and step != last:
                self._usual, self._count = 0.0, 0
            return None
        if step - last != self._interval:
            self._interval, self._count, self._since = step - last, 0, record.step
        self._count += 1
        if self._count >= self.proven:
            self._usual = self._interval
        usual, interval = self._usual, self._interval
        is_other = max(usual, interval) >= MIN_FACTOR * min(usual, interval)
        if not usual or not is_other:
            return CLEAR if usual else None
        if self._count < self.in_a_row:
            return None
        return Finding(
            summary=f"The log has a row every {interval:g} steps instead of every {usual:g}.",
            evidence={"steps_between_rows": interval, "usual_steps_between_rows": usual},
            onset_step=min(self._since, record.step),
        )
