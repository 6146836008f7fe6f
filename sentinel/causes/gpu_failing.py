"""GPU failing: a device with errors, and a run that suffers from it.

Clues
    Errors that the driver reports are nearly enough by themselves. A rank that falls behind, is
    apart from its replicas, or has losses that are no numbers shows that the run feels them.

Source
    Grattafiori et al. 2024 (arXiv:2407.21783), section 3.3.4: faulty GPUs and their memory were
    behind nearly half of the interruptions of a large run that nobody had planned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity


class GpuFailing:
    """Judges by what the driver reports, and by ranks in trouble.

    What a slow rank explains is folded by that cause: here it is evidence, no more, so that what
    costs time and what spoils the numbers stay apart where no GPU has errors.
    """

    title: ClassVar[str] = "a GPU is failing"
    explains: ClassVar[frozenset[str]] = frozenset({
        "gpu_fault", "rank_desync", "rank_outlier", "nan_or_inf",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The errors, and who suffers; errors of a program are only noted, and are none."""
        fault = context.symptoms.get("gpu_fault")
        if fault is None or fault.severity is Severity.INFO:
            return
        yield from symptom_evidence(fault, 0.7)
        yield from symptom_evidence(context.earliest_symptom("rank_desync", "rank_outlier"), 0.4)
        yield from symptom_evidence(context.symptoms.get("nan_or_inf"), 0.3)
        yield from symptom_evidence(context.symptoms.get("straggler"), 0.4)
        yield from symptom_evidence(context.symptoms.get("throughput_drop"), 0.1)

    def remedy(self, context: CaseContext) -> str:
        """Leave the device; distrust what was saved since."""
        wrong = context.earliest_symptom("rank_desync", "rank_outlier", "nan_or_inf", "straggler")
        rank = None if wrong is None else wrong.rank
        who = "" if rank is None else f" Look first at the GPU of rank {rank}."
        return (
            "Drain the node, and go on elsewhere from the last checkpoint before the first error: "
            f"what was saved since may hold wrong numbers.{who} Then see dmesg for Xid, run "
            "`dcgmi diag -r 3`, and reset or replace the GPU before anybody gets it again."
        )
