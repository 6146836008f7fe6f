"""Disk runs out: checkpoints fill the disk that the next one is to go to.

Clues
    A disk that will be full is enough by itself. Saves that come far too often fill it; where the
    step counter is why, that is the cause.

Source
    huggingface/trl issue 1889, whose saves filled 12 TB in a night.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

FREQUENT_SAVE_STEPS = 50.0
"""Steps from save to save that are few, where a save is of a whole model."""


class DiskRunsOut:
    """Judges by the room that is left, and by how often it is written to."""

    title: ClassVar[str] = "disk runs out"
    explains: ClassVar[frozenset[str]] = frozenset({"disk_filling", "checkpoint_cadence"})
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The room, and what takes it."""
        full = context.symptoms.get("disk_filling")
        if full is None:
            return
        yield from symptom_evidence(full, 0.7)
        yield from symptom_evidence(context.symptoms.get("checkpoint_cadence"), 0.5)
        apart = context.number("save_steps")
        if apart is not None and 0.0 < apart <= FREQUENT_SAVE_STEPS:
            yield Evidence(0.2, f"The run saves every {apart:g} steps.")

    def remedy(self, context: CaseContext) -> str:
        """Room first, and of checkpoints none that may be needed; then fewer of them."""
        return (
            "See what takes the room (`du`), and free it now. If it is checkpoints, first make "
            "sure that the newest is whole, since one that was cut short cannot be resumed from; "
            "then move or remove old ones, but keep the newest two, the best, and the last before "
            f"any other trouble of the run. Then raise {describe_setting('save interval', context.metadata)}, or "
            f"let {describe_setting('checkpoint limit', context.metadata)} be few."
        )
