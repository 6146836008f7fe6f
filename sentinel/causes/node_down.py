"""Node down: a whole node is gone, and the rest of the run waits for it.

Clues
    A node that nobody hears, while nobody takes a step, is enough by itself. A GPU with errors, a
    host that ran out of memory, or a rank that fell behind may have been its last words.

Source
    Grattafiori et al. 2024 (arXiv:2407.21783), section 3.3.4: most interruptions that nobody had
    planned were of a node's hardware, and took the whole run with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import began_first, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence, Symptom
from sentinel.model.finding import Severity

PRECURSOR_WEIGHTS = {
    "gpu_fault": 0.3,
    "memory_creep": 0.3,
    "straggler": 0.15,
    "data_stall": 0.15,
    "throughput_drop": 0.15,
}
"""How much each tells of a node that was not well before it was silent."""


class NodeDown:
    """Judges by the silence of a node, and by what came before it.

    Memory that runs out is evidence, no more: else what fills it and what costs time would be taken
    for one case where no node is lost.
    """

    title: ClassVar[str] = "a node is down"
    explains: ClassVar[frozenset[str]] = frozenset({
        "node_lost", "gpu_fault", "straggler", "data_stall", "throughput_drop",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The silence, and what led to it; nothing while training goes on without the node."""
        lost = context.symptoms.get("node_lost")
        if lost is None or lost.evidence.get("training") == "goes on":
            return
        yield from symptom_evidence(lost, 0.85)
        for name, weight in PRECURSOR_WEIGHTS.items():
            before = context.symptoms.get(name)
            if before is not None and began_first(before, lost):
                yield from symptom_evidence(before, weight)

    def remedy(self, context: CaseContext) -> str:
        """Which node to look at, and how to go on."""
        lost = context.symptoms.get("node_lost")
        where = "the node" if lost is None else _format_hosts(lost)
        fault = context.symptoms.get("gpu_fault")
        first = "" if fault is None else " Its GPU had errors before: have it tested (dcgmi diag)."
        return (
            f"See on the console or in the scheduler's log what became of {where}, drain it, and "
            "resume from the last checkpoint with another in its place, or with fewer nodes if the "
            f"launcher is elastic (torchrun --nnodes MIN:MAX).{first}"
        )


def _format_hosts(lost: Symptom) -> str:
    hosts = str(lost.evidence.get("hosts", ""))
    return hosts.replace(",", ", ") or "the node"
