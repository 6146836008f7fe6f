"""Labels masked: every label is masked, so there is no loss to learn from.

A template whose answers are not found, answers beyond the maximum sequence length, padding that
masks all labels: every label is -100, and the mean over nothing is 0 or NaN.

Evidence
    A loss of exactly 0 without a gradient, or a loss that is NaN since the first step; in
    supervised fine-tuning this is likelier than elsewhere, where a term of the loss may be missing.
    A loss that was normal in most steps has another cause, and so has a run with a reward.

Source
    The cross-entropy of PyTorch, which is 0/0 if every target is its `ignore_index`; trainers that
    log such a loss as 0 (hiyouga/LLaMA-Factory issues 4850 and 5627). Tiny trainings without
    labels, in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.causes._evidence import StatedCause, is_reported, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence, Symptom


class LabelsMasked(StatedCause):
    """Diagnoses by a loss of 0 or NaN without gradients."""

    title = "masked labels"
    explains = frozenset({"loss_zero", "nan_or_inf", "grad_vanishing"})
    sign = "a batch has no label other than -100"
    advice = (
        "Stop the run, and count the labels of one batch that are not -100. If there are none, "
        "check the response template against the tokenizer's, {completion-only loss}, and whether "
        "{maximum sequence length} truncates texts before the answer begins. Restart from the "
        "beginning: the weights may be damaged already."
    )

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """No loss and no gradient; nothing for a loss that was learned to 0."""
        zero_loss, never_finite = context.symptoms.get("loss_zero"), _loss_never_finite(context)
        if not is_reported(zero_loss or never_finite):
            return
        yield from symptom_evidence(zero_loss, 0.5)
        yield from symptom_evidence(never_finite, 0.6)
        yield from symptom_evidence(context.symptoms.get("grad_vanishing"), 0.3)
        if context.values.get("grad_norm") == 0.0:
            yield Evidence(0.3, "The gradient norm is 0.")
        if context.text("algorithm") == "sft":
            yield Evidence(0.2, "In supervised fine-tuning a template selects the labels.")

    def contradictions(self, context: CaseContext) -> Iterable[str]:
        """A loss that was above 0 for long, and rewards: those need no labels."""
        losses = context.ranges.get("loss")
        if losses is not None and 0 < losses.zeros < losses.count / 2:
            yield f"The loss is 0 in {losses.zeros} of {losses.count} logged values only."
        if "reward" in context.values:
            yield "The run is trained by reward, without labels."


def _loss_never_finite(context: CaseContext) -> Symptom | None:
    """The symptom of a loss that was never finite."""
    nonfinite, interval = context.symptoms.get("nan_or_inf"), context.number("logging_steps") or 1.0
    if nonfinite is None or "loss" not in nonfinite.evidence:
        return None
    return nonfinite if nonfinite.onset_step <= max(1.0, interval) else None
