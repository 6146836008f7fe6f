"""Ranks out of step: the replicas no longer hold the same model.

Evidence
    Ranks that were equal and now differ, in their weights or in what is computed from them, are the
    main evidence. A rank whose loss is far from that
    of the others, and a logged loss that is not the mean of the ranks, are effects; without the
    former they are faults of a shard, or of logging.

Source
    The notes of PyTorch on DistributedDataParallel: parameters are broadcast once, at the start,
    and remain equal only if every rank takes the same steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sentinel.causes._evidence import StatedCause, weighted_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.evidence_text import in_words

WEIGHTS = {"replicas_differ": 0.9, "rank_desync": 0.7, "rank_outlier": 0.4, "metric_integrity": 0.2}
"""Weight of the differences, and of each of their effects."""


class RanksOutOfStep(StatedCause):
    """Diagnoses by values that must be equal on every rank."""

    title = "replicas out of step"
    explains = frozenset({
        "replicas_differ", "rank_desync", "rank_outlier", "metric_integrity",
    })  # fmt: skip
    sign = "the weights of two ranks differ"

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The difference and its effects."""
        if context.earliest("replicas_differ", "rank_desync") is not None:
            yield from weighted_evidence(context, WEIGHTS)

    def remedy(self, context: CaseContext) -> str:
        """One checkpoint for all ranks; then find the cause on the differing ranks."""
        apart = context.symptoms.get("rank_desync") or context.symptoms.get("replicas_differ")
        evidence = {} if apart is None else apart.evidence
        signal = str(evidence.get("signal", "grad_norm"))
        default = f"a step that only it takes or skips, which changes the {in_words(signal)}"
        advice = _WHERE_TO_LOOK.get(signal, default)
        if evidence.get("equal_before") == "no":
            # There is no checkpoint from before the difference.
            return (
                "Start the run again with one configuration on all ranks: every checkpoint of this "
                f"run contains the weights of a single rank. {_where(evidence)} look for {advice}."
            )
        return (
            "Resume all ranks from one checkpoint before the onset: later checkpoints contain the "
            f"weights of a single rank. {_where(evidence)} look for {advice}."
        )


_WHERE_TO_LOOK = {
    "learning_rate": "another configuration, or a scheduler that only some ranks step",
    "grad_norm": "a backward pass under `no_sync`, parameters created or set after the model was "
    "wrapped, or batches that only some ranks skip",
    "loss_scale": "a gradient that overflows only there: the scalers must combine their overflows "
    "over ranks (ShardedGradScaler for sharded gradients) before any rank skips a step",
}


def _where(evidence: Mapping[str, float | str]) -> str:
    """On which ranks to look; without a majority, either half may be wrong."""
    ranks = str(evidence.get("differing_ranks", ""))
    if not ranks:
        return "On the ranks that differ"
    named = f"rank {ranks}" if ranks.isdecimal() else f"ranks {ranks}"
    if "majority_value" in evidence:
        return f"On {named}"
    return f"Compare {named} with the others, and"
