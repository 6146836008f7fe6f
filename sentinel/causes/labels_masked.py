"""Labels masked: no token counts, so that there is no loss and nothing to learn from.

A template whose answers are not found, answers behind the length at which texts are cut, padding
that took all labels along: every label is -100, and the mean over nothing is 0 or not a number.

Clues
    A loss of exactly 0 beside no gradient, or one that is no number from the first step on; in
    fine-tuning on answers it is likelier than elsewhere, where a term of the loss may be lost. What
    was well for some steps and broke then is another matter.

Source
    The cross-entropy of PyTorch, which is 0/0 if every target is its `ignore_index`; trainers that
    log such a loss as 0 (hiyouga/LLaMA-Factory issues 4850 and 5627). Tiny trainings without
    labels, in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence, Symptom
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting


class LabelsMasked:
    """Judges by a loss that is nothing, and by gradients that are none."""

    title: ClassVar[str] = "all labels are masked"
    explains: ClassVar[frozenset[str]] = frozenset({"loss_zero", "nan_or_inf", "grad_vanishing"})
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """No loss, and no gradient; a loss that was learnt away is only noted, and is none."""
        zero, never = context.symptoms.get("loss_zero"), _loss_never_finite(context)
        if zero is not None and zero.severity is Severity.INFO:
            return
        if zero is None and never is None:
            return
        yield from symptom_evidence(zero, 0.5)
        yield from symptom_evidence(never, 0.6)
        yield from symptom_evidence(context.symptoms.get("grad_vanishing"), 0.3)
        if context.values.get("grad_norm") == 0.0:
            yield Evidence(0.3, "The gradient norm is 0.")
        if context.text("algorithm") == "sft":
            yield Evidence(0.2, "Which labels count is up to a template, in fine-tuning.")

    def remedy(self, context: CaseContext) -> str:
        """Count the labels that are left."""
        return (
            "Stop it, and count the labels of one batch that are not -100. If there are none, "
            "check the template of the answers against the tokenizer's, "
            f"{describe_setting('completion-only loss', context.metadata)}, and whether "
            f"{describe_setting('maximum sequence length', context.metadata)} cuts texts off before the answer begins. "
            "Begin again from the start: weights may be lost already."
        )


def _loss_never_finite(context: CaseContext) -> Symptom | None:
    """The loss, where no value of it ever was one."""
    lost, apart = context.symptoms.get("nan_or_inf"), context.number("logging_steps") or 1.0
    if lost is None or "loss" not in lost.evidence or lost.onset_step > max(1.0, apart):
        return None
    return lost
