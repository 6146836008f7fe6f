"""Overdue checkpoint: no checkpoint has been saved for much longer than configured.

Formula
    usual    = save_steps as declared by the run
    Finding  = more than `times` * usual steps since the last save, or since the start
    info     = nothing has been saved in this attempt yet

Units
    Steps are trainer steps. `times`: plain number.

Source
    Work that is not saved is lost with the run. A trainer that counts one number and saves by
    another never saves its last checkpoint (verl#2619); a trainer with a full disk may log the
    error and continue.

Defaults
    `times` 2.5: a save that is skipped once, or delayed until an evaluation, arrives before the
    limit. Only a declared interval counts: a run that saves the best model, at the end of an epoch
    or on demand has none.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Scope, Severity
from sentinel.model.record import METADATA, SAVE, START, STEP, Record


@dataclass
class CheckpointOverdue(DetectorDefaults):
    """Evaluates `global_step` against the step of the last save."""

    times: float = 2.5

    steps_with = frozenset({"global_step", "restarted_after_step"})
    signal = "global_step"
    scope = Scope.TRAINING
    remedy = (
        "Save a checkpoint manually before you stop the run. Look for save errors in the "
        "trainer's log. Check free space and permissions of {output directory}, and which rank "
        "saves."
    )

    def __post_init__(self) -> None:
        self._save_steps = 0.0
        self._reset()

    def _reset(self) -> None:
        self._has_saved = False
        self._counted_from: float | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate a step, or update the state from a save or the declared settings."""
        if record.event is START or "restarted_after_step" in record.values:
            self._reset()
        if record.event in (START, METADATA):
            self._save_steps = record.values.get("save_steps", self._save_steps)
        if record.event is SAVE:
            self._has_saved, self._counted_from = True, float(record.step)
        step = record.values.get("global_step")
        if record.event is not STEP or step is None or not -1e15 < step < 1e15:
            return None
        if self._counted_from is None or step < self._counted_from:
            # After a step that goes back, such as a resume in a log, counting restarts there.
            self._counted_from = step
        if not 1.0 <= self._save_steps < 1e15:
            return None
        since = step - self._counted_from
        if since <= self.times * self._save_steps:
            return CLEAR
        text = (
            f"The last checkpoint was saved {since:.0f} steps ago"
            if self._has_saved
            else f"No checkpoint has been saved for {since:.0f} steps"
        )
        return Finding(
            summary=f"{text}; the save interval is {self._save_steps:.0f} steps.",
            evidence={
                "steps_since_last_save": since,
                "save_interval_steps": self._save_steps,
                "counted_from_step": self._counted_from,
            },
            severity=None if self._has_saved else Severity.INFO,
        )
