"""GPU failing: a GPU reports errors, and the run suffers from them.

Evidence
    Errors reported by the driver are almost sufficient. A rank that is slow, that differs from its
    replicas, or whose losses are NaN shows that the run is affected.

Source
    Grattafiori et al. 2024 (arXiv:2407.21783), section 3.3.4: faulty GPUs and their memory caused
    nearly half of the unplanned interruptions of a large run.
"""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.causes._evidence import StatedCause, is_reported, weighted_evidence
from sentinel.model.diagnosis import CaseContext, Evidence

WEIGHTS = {
    "gpu_fault": 0.7,
    "rank_desync or rank_outlier": 0.4,
    "nan_or_inf": 0.3,
    "straggler": 0.4,
    "throughput_drop": 0.1,
}
"""Weight of each incident of a run with a GPU fault."""


class GpuFailing(StatedCause):
    """Diagnoses by the errors of the driver, and by affected ranks.

    A slow rank is evidence only and not part of `explains`, so that without GPU errors slowness and
    wrong values remain separate cases.
    """

    title = "failing GPU"
    explains = frozenset({
        "gpu_fault", "rank_desync", "rank_outlier", "nan_or_inf",
    })  # fmt: skip
    sign = "the kernel log has an Xid, or `dcgmi diag -r 3` fails"

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The errors and the affected ranks; nothing for errors of a program."""
        if is_reported(context.symptoms.get("gpu_fault")):
            yield from weighted_evidence(context, WEIGHTS)

    def remedy(self, context: CaseContext) -> str:
        """Stop using the GPU, and resume from before the first error."""
        affected = context.earliest("rank_desync", "rank_outlier", "nan_or_inf", "straggler")
        rank = None if affected is None else affected.rank
        advice = "" if rank is None else f" Check the GPU of rank {rank} first."
        return (
            "Drain the node, and use another: resume from the last checkpoint before the onset, "
            f"since later checkpoints may contain wrong values.{advice} Then search dmesg for Xid, "
            "run `dcgmi diag -r 3`, and reset or replace the GPU before it is used again."
        )
