"""Data changed: the training data are others from some step on, and the model is as good as before.

Another data set, mixture or length of the examples has another loss, at once and for as long as it
lasts. The updates do not get worse.

Evidence
    A loss that rose to its new level within a few logged values, at a learning rate that did not
    rise. A gradient norm that did not rise with it makes it possible only, since a norm that is
    clipped before it is logged does not either. A held-out loss that did not rise shows that the
    weights are not worse, and is needed to name the cause. A gradient that exploded, a NaN or a
    rate far above the usual excludes it. A change that also changes the held-out data, or raises
    the gradient, cannot be distinguished from an instability in a log.

Source
    Not a failure, but the most common harmless reason of a loss that jumps and stays. Synthetic
    logs whose task changes, in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from sentinel.causes._evidence import (
    MIN_VALUES_BACK,
    StatedCause,
    signals_without_rise,
    symptom_evidence,
)
from sentinel.model.diagnosis import CaseContext, Evidence, Symptom
from sentinel.model.evidence_text import capitalized, in_words

WEIGHTS = {"grad_norm": 0.3, "eval_loss": 0.5}
"""Weight of each signal that did not rise with the loss."""

MIN_VALUES_BEFORE = 16
"""Logged values before the onset that are needed; those of long ago are not kept."""

JUMP_SHARE = 0.5
"""Share of its rise that a loss has made within the first values if the data changed at once."""


class DataChanged(StatedCause):
    """Diagnoses by a loss that jumps and stays while the weights are as good as before."""

    title = "data changed"
    explains = frozenset({"loss_divergence", "loss_spike"})
    excluded_by = frozenset({
        "grad_explosion", "nan_or_inf", "learning_rate_high", "step_regression",
    })  # fmt: skip
    sign = (
        "batches from before the onset have the loss of before, and the loss on held-out data of "
        "before (log `eval_loss`) did not rise"
    )
    advice = (
        'If the change is on purpose, declare it with `sentinel.mark("stage")`, so that levels '
        "start anew. Otherwise compare batches from before and after the onset: their source and "
        "order, the weights of the mixture, tokenization, template and labels."
    )

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The jump, and what did not rise with it."""
        divergence = context.symptoms.get("loss_divergence")
        if divergence is None or not _jumped(context, divergence):
            return
        unchanged = [*signals_without_rise(context, divergence)]
        yield from symptom_evidence(divergence if unchanged else None, 0.25)
        for signal in unchanged:
            text = f"{capitalized(in_words(signal))} did not rise with the loss."
            yield Evidence(WEIGHTS[signal], text)

    def contradictions(self, context: CaseContext) -> Iterable[str]:
        """A learning rate that rose with the loss."""
        divergence = context.symptoms.get("loss_divergence")
        points = context.history.get("learning_rate", ())
        if divergence is None:
            return
        before = [rate for step, rate in points if step < divergence.earliest_onset]
        after = [rate for step, rate in points if step >= divergence.onset_step]
        if before and after and max(after) > 2 * (usual := median(before)):
            yield f"The learning rate rose from {usual:.3g} to {max(after):.3g}."


def _jumped(context: CaseContext, divergence: Symptom) -> bool:
    """Whether the first values since the onset are at the new level already."""
    points = context.history.get("loss", ())
    before = [loss for step, loss in points if step < divergence.earliest_onset]
    after = [loss for step, loss in points if step >= divergence.latest_onset]
    if len(before) < MIN_VALUES_BEFORE or len(after) < 2 * MIN_VALUES_BACK:
        return False
    usual, highest = median(before[-MIN_VALUES_BACK:]), median(sorted(after)[-MIN_VALUES_BACK:])
    return median(after[:MIN_VALUES_BACK]) - usual >= JUMP_SHARE * (highest - usual)
