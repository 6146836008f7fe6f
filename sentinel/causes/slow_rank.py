"""Slow rank: one rank holds up all the others at every step.

Clues
    A rank that takes longer, always the same one, is the heart of it. A run that has slowed since,
    or GPUs that wait, show what it costs. A GPU with errors is told of with it, and is the cause.

Source
    Jiang et al. 2024 (arXiv:2402.15627), on hosts that failed at nothing, and were slower than the
    others for the same work.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting


class SlowRank:
    """Judges by the rank that is last, and by what its lateness costs."""

    title: ClassVar[str] = "one rank holds up the others"
    explains: ClassVar[frozenset[str]] = frozenset({
        "straggler", "data_stall", "throughput_drop", "gpu_underuse", "gpu_fault",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The rank, and what followed; nothing where a GPU is failing."""
        last, fault = context.symptoms.get("straggler"), context.symptoms.get("gpu_fault")
        if last is None or (fault is not None and fault.severity is not Severity.INFO):
            return
        yield from symptom_evidence(last, 0.65)
        yield from symptom_evidence(context.symptoms.get("throughput_drop"), 0.4)
        for name in ("data_stall", "gpu_underuse"):
            yield from symptom_evidence(context.symptoms.get(name), 0.2)

    def remedy(self, context: CaseContext) -> str:
        """Where to look, by what it is that takes the rank longer."""
        last = context.symptoms.get("straggler")
        who = "the rank named" if last is None or last.rank is None else f"rank {last.rank}"
        what = "" if last is None else last.evidence.get("signal", "")
        if what == "data_wait":
            return (
                f"Look at the storage and the processors of the node of {who}, which waits for its "
                f"data: raise {describe_setting('data loader workers', context.metadata)}, and see whether its shard has "
                "longer samples or lies on slower storage than the others'."
            )
        if what == "generation_time":
            return (
                f"See whether {who} gets longer prompts or answers than the others, and share them "
                "out evenly; otherwise look at its sampling engine, and at other programs on its "
                "GPU."
            )
        return (
            f"Look at the node of {who}: clocks (nvidia-smi -q -d PERFORMANCE), other programs, "
            "the network. If nothing is found, go on from the last checkpoint without that node."
        )
