"""Memory runs out: memory use grows with every step, and the run will be killed.

Evidence
    Memory that fills steadily towards its limit is sufficient; a run that slows meanwhile, as the
    machine swaps or the allocator searches, makes it urgent.

Source
    PyTorch's frequently asked questions on memory ("don't accumulate history across your training
    loop"); pytorch/pytorch issue 13246, on loaders whose workers copy the dataset.
"""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.causes._evidence import StatedCause, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.quantity_text import format_duration
from sentinel.signals.setting_names import describe_setting


class MemoryRunsOut(StatedCause):
    """Diagnoses by the forecast of memory use."""

    title = "memory running out"
    explains = frozenset({"memory_creep", "throughput_drop"})
    sign = "memory use still grows at the same step time"

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The forecast, and a slowdown after it."""
        creep = context.symptoms.get("memory_creep")
        if creep is None:
            return
        yield from symptom_evidence(creep, 0.75)
        slowdown = context.symptoms.get("throughput_drop")
        if slowdown is not None and slowdown.onset_step >= creep.onset_step:
            yield from symptom_evidence(slowdown, 0.2)

    def remedy(self, context: CaseContext) -> str:
        """Save a checkpoint in time; find the leak."""
        creep = context.symptoms.get("memory_creep")
        left = None if creep is None else creep.evidence.get("seconds_until_full")
        soon = f" within {format_duration(left, parts=1)}" if isinstance(left, float | int) else ""
        workers = describe_setting("number of data loader workers", context.metadata)
        return (
            f"Save a checkpoint{soon}, and resume from it, which frees the memory; "
            f"{describe_setting('save interval', context.metadata)} must be short enough for that. "
            "Look for losses or logits kept with their graph (keep `loss.detach()`) and lists that "
            f"grow with every step. Lower {workers} if each of them copies data."
        )
