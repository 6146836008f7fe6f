"""Checkpoint overdue: the run trains on, and nothing has been saved for far too long.

Formula
    usual    = save_steps as the run declared it
    Finding  = more than `times` * usual steps since the last save, or since the start
    info     = nothing was saved in this attempt yet

Units
    Steps are the trainer's own. `times`: plain number.

Source
    What was not saved is lost with the run, and most who look for a checkpoint look for it when it
    is too late. A trainer that counts one number and saves by another never saves its last one
    (verl#2619); one whose disk is full may log the error and train on.

Defaults
    `times` 2.5: a save that a step number skipped, or that was put off to an evaluation, comes
    before the second one is due. Only a declared interval counts. Who saves what is better than
    before, at the end of an epoch, or at will, has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record


@dataclass
class CheckpointOverdue:
    """Judges `global_step` against the last save."""

    times: float = 2.5

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "global_step"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Look in output_dir for the newest checkpoint, and in the trainer's log for an error of "
        "saving; check free room and permissions there, and which rank is to save. Save by hand "
        "before the run is stopped."
    )

    def __post_init__(self) -> None:
        self._save_steps = 0.0
        self._reset()

    def _reset(self) -> None:
        self._has_saved = False
        self._counted_from: float | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Judge one step; learn from saves and from what the run declares."""
        if record.event is Event.START or "restarted_after_step" in record.values:
            self._reset()
        if record.event in (Event.START, Event.METADATA):
            self._save_steps = record.values.get("save_steps", self._save_steps)
        if record.event is Event.SAVE:
            self._has_saved, self._counted_from = True, float(record.step)
        step = record.values.get("global_step")
        if record.event is not Event.STEP or step is None or not -1e15 < step < 1e15:
            return None
        if self._counted_from is None or step < self._counted_from:
            # A step that goes back, as of a resume in a log, counts from there.
            self._counted_from = step
        if not 1.0 <= self._save_steps < 1e15:
            return None
        since = step - self._counted_from
        if since <= self.times * self._save_steps:
            return Clear()
        what = "The last save was" if self._has_saved else "Nothing was saved in"
        ago = " steps ago" if self._has_saved else " steps"
        return Finding(
            summary=f"{what} {since:.0f}{ago}; it should be every {self._save_steps:.0f}.",
            evidence={
                "steps_since": since,
                "save_steps": self._save_steps,
                "counted_from": self._counted_from,
            },
            severity=None if self._has_saved else Severity.INFO,
        )
