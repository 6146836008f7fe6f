"""Node down: a whole node is lost, and the rest of the run waits for it.

Evidence
    A node that does not report while no rank takes a step is almost sufficient. A GPU with errors,
    a host that ran out of memory, or a slow rank may have preceded it. If a rank was killed while
    the head did not report, the rank is the cause.

Source
    Grattafiori et al. 2024 (arXiv:2407.21783), section 3.3.4: most unplanned interruptions were due
    to the hardware of a node, and stopped the whole run.
"""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.causes._evidence import StatedCause, possibly_first, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence, Symptom

PRECURSOR_WEIGHTS = {
    "gpu_fault": 0.3,
    "memory_creep": 0.3,
    "straggler": 0.15,
    "data_stall": 0.15,
    "throughput_drop": 0.15,
}
"""Weight of each incident before the loss of the node."""


class NodeDown(StatedCause):
    """Diagnoses by a lost node, and by incidents before it.

    Memory that runs out is evidence only and not part of `explains`, so that without a lost node
    memory and slowness remain separate cases.
    """

    title = "node down"
    explains = frozenset({
        "node_lost", "gpu_fault", "straggler", "data_stall", "throughput_drop",
    })  # fmt: skip
    sign = "the node does not answer, or was restarted"

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The lost node and earlier incidents; nothing if ranks continue, or one was killed."""
        lost = context.symptoms.get("node_lost")
        if lost is None or lost.rank is not None or lost.evidence.get("training") == "running":
            return
        yield from symptom_evidence(lost, 0.85)
        for name, weight in PRECURSOR_WEIGHTS.items():
            before = context.symptoms.get(name)
            if before is not None and possibly_first(before, lost):
                yield from symptom_evidence(before, weight)

    def remedy(self, context: CaseContext) -> str:
        """The node to check, and how to resume."""
        lost = context.symptoms.get("node_lost")
        nodes = "the node" if lost is None else _format_hosts(lost)
        fault = context.symptoms.get("gpu_fault")
        gpu = "" if fault is None else " Test its GPU, which had errors before (`dcgmi diag -r 3`)."
        return (
            f"Check on the console or in the scheduler's log what happened to {nodes}. Drain it, "
            "and resume from the last checkpoint with another node, or with fewer nodes if the "
            f"launcher is elastic (`torchrun --nnodes MIN:MAX`).{gpu}"
        )


def _format_hosts(lost: Symptom) -> str:
    hosts = str(lost.evidence.get("hosts", ""))
    return hosts.replace(",", ", ") or "the node"
