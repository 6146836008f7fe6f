"""Disk runs out: checkpoints fill the disk that the next one is written to.

Evidence
    A disk that will soon be full is almost sufficient. Frequent saves fill it; if the step counter
    is the reason for them, that is the cause.

Source
    huggingface/trl issue 1889, whose saves filled 12 TB in a night.
"""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.causes._evidence import StatedCause, weighted_evidence
from sentinel.model.diagnosis import CaseContext, Evidence

FREQUENT_SAVE_STEPS = 50.0
"""Save interval in steps that counts as short."""


class DiskRunsOut(StatedCause):
    """Diagnoses by the free space and by the frequency of saves."""

    title = "disk space running out"
    explains = frozenset({"disk_filling", "checkpoint_cadence"})
    sign = "checkpoints take most of the space that is used (`du`)"
    advice = (
        "Find what uses the space (`du`), and free some now. If it is checkpoints, check that the "
        "newest is complete, and delete old ones except the newest two, the best, and the last "
        "before any other incident of the run. Raise {save interval}, or lower {checkpoint limit}."
    )
    excluded_by = frozenset({"step_stride"})

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The free space, and what uses it."""
        if "disk_filling" not in context.symptoms:
            return
        yield from weighted_evidence(context, {"disk_filling": 0.7, "checkpoint_cadence": 0.5})
        save_steps = context.number("save_steps")
        if save_steps is not None and 0.0 < save_steps <= FREQUENT_SAVE_STEPS:
            yield Evidence(0.2, f"The run saves every {save_steps:g} steps.")
