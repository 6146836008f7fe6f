"""Ranks out of step: the replicas are no longer one model.

Clues
    Ranks that were alike and are not is the heart of it. A rank whose loss is far from the others',
    and a logged loss that is not that of the ranks, follow from it; without it they are matters of
    a shard, or of the logging.

Source
    pytorch/pytorch's notes on DistributedDataParallel: parameters are sent once, at the start, and
    stay alike only as long as every rank takes the same steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from sentinel.causes._evidence import symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity


class RanksOutOfStep:
    """Judges by what must be the same on every rank."""

    title: ClassVar[str] = "the ranks are no longer one model"
    explains: ClassVar[frozenset[str]] = frozenset({
        "rank_desync", "rank_outlier", "metric_integrity",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """Where they differ, and what shows it."""
        apart = context.symptoms.get("rank_desync")
        if apart is None:
            return
        yield from symptom_evidence(apart, 0.7)
        yield from symptom_evidence(context.symptoms.get("rank_outlier"), 0.4)
        yield from symptom_evidence(context.symptoms.get("metric_integrity"), 0.2)

    def remedy(self, context: CaseContext) -> str:
        """One checkpoint for all, then whoever steps alone."""
        apart = context.symptoms.get("rank_desync")
        evidence = {} if apart is None else apart.evidence
        signal = str(evidence.get("signal", "grad_norm"))
        alone = f"a step that only it takes or leaves out, since {signal} is counted there"
        return (
            "Resume every rank from one checkpoint before the onset: what was saved since is one "
            f"rank's alone. On {_format_ranks(evidence)} look for {_WHERE_TO_LOOK.get(signal, alone)}."
        )


_WHERE_TO_LOOK = {
    "grad_norm": "a backward pass under `no_sync`, parameters made or set after the model was "
    "wrapped, or batches that only some ranks skip",
    "loss_scale": "a gradient that overflows there alone: the ranks must bring together what their "
    "scalers find (of sharded gradients by ShardedGradScaler) before any of them leaves a step out",
}


def _format_ranks(evidence: Mapping[str, float | str]) -> str:
    odd = str(evidence.get("odd_ranks", ""))
    if not odd:
        return "the ranks named"
    return f"ranks {odd}" if "," in odd else f"rank {odd}"
