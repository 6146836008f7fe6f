"""Slow rank: one rank slows down all the others at every step.

Evidence
    A rank that takes longer at every step is the main evidence. A run that has slowed since, or
    idle GPUs, are effects. If a GPU has errors, that is the cause. If all ranks wait for data, the
    slow loaders are.

Source
    Jiang et al. 2024 (arXiv:2402.15627), on hosts without any failure that were slower than the
    others for the same work.
"""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.causes._evidence import (
    StatedCause,
    is_reported,
    slowdown_evidence,
    symptom_evidence,
    waits_alone,
    weighted_evidence,
)
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.signals.setting_names import describe_setting


class SlowRank(StatedCause):
    """Diagnoses by the slowest rank, and by the effects on the run."""

    title = "slow rank"
    explains = frozenset({
        "straggler", "data_stall", "throughput_drop", "gpu_underuse", "gpu_fault",
    })  # fmt: skip
    sign = "the same rank, on another node, is not slow"

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The rank and the effects; nothing if a GPU fails, or all ranks wait."""
        straggler, fault = context.symptoms.get("straggler"), context.symptoms.get("gpu_fault")
        if straggler is None or is_reported(fault):
            return
        waits_for_data = straggler.evidence.get("signal") == "data_wait"
        if waits_for_data and "data_stall" in context.symptoms and not waits_alone(context):
            return
        yield from symptom_evidence(straggler, 0.65)
        yield from slowdown_evidence(context, 0.4)
        yield from weighted_evidence(context, {"data_stall": 0.2, "gpu_underuse": 0.2})

    def remedy(self, context: CaseContext) -> str:
        """Depends on the time that is longer on this rank."""
        straggler = context.symptoms.get("straggler")
        known_rank = None if straggler is None else straggler.rank
        rank = "the named rank" if known_rank is None else f"rank {known_rank}"
        signal = "" if straggler is None else straggler.evidence.get("signal", "")
        if signal == "data_wait":
            workers = describe_setting("number of data loader workers", context.metadata)
            return (
                f"Check storage and CPUs of the node of {rank}, which waits for its data: raise "
                f"{workers}, and check whether its shard has longer samples or is on slower "
                "storage than the others'."
            )
        if signal == "compute_time":
            return (
                f"Check the CPUs and the GPU of the node of {rank}: clocks (`nvidia-smi -q -d "
                "PERFORMANCE`), other programs, memory. If its batches are longer than those of "
                "the others, distribute them evenly; otherwise save a checkpoint, and resume from "
                "it without that node."
            )
        if signal == "generation_time":
            return (
                f"Check whether {rank} has longer prompts or completions than the others, and "
                "distribute them evenly. Otherwise check its sampling engine, and other programs "
                "on its GPU."
            )
        return (
            f"Check the node of {rank}: clocks (`nvidia-smi -q -d PERFORMANCE`), other "
            "programs, the network. If nothing is found, save a checkpoint, and resume from it "
            "without that node."
        )
