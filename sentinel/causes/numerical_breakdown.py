"""Numerical breakdown: numbers grew past what their format holds, and took the loss with them.

Half precision ends at 65504. Activations or gradients beyond it are infinite, the next difference
of two of them is not a number, and one such update makes every weight one.

Clues
    A loss or gradient that is no number is the heart of it. Gradients, or a loss, that left their
    level before it make it a matter of size; so do half precision, and a loss scale that had to
    fall to next to nothing.

Source
    Micikevicius et al. 2018 (arXiv:1710.03740) on half precision and loss scaling; a tiny training
    in float16 whose optimizer divides by what underflowed, in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

EXHAUSTED_LOSS_SCALE = 1.0
"""A loss scale of no more protects nothing: it began at some 65536 and halved at each overflow."""


class NumericalBreakdown:
    """Judges by numbers that were lost, and by what grew before."""

    title: ClassVar[str] = "numerical breakdown"
    explains: ClassVar[frozenset[str]] = frozenset({
        "nan_or_inf", "grad_explosion", "loss_spike", "loss_divergence",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """What was lost, and what led to it; a single lost norm is what a loss scaler is for."""
        lost = context.symptoms.get("nan_or_inf")
        if lost is None or lost.severity is Severity.INFO:
            return
        yield from symptom_evidence(lost, 0.5)
        for grown in (
            context.symptoms.get("grad_explosion"),
            context.earliest_symptom("loss_spike", "loss_divergence"),
        ):
            if grown is not None and grown.onset_step <= lost.onset_step:
                yield from symptom_evidence(grown, 0.4)
        if context.text("fp16") == "true":
            yield Evidence(0.3, "The run trains in float16, which ends at 65504.")
        scale = context.values.get("loss_scale")
        if scale is not None and 0.0 < scale <= EXHAUSTED_LOSS_SCALE:
            yield Evidence(0.4, f"The loss scale has fallen to {scale:g}.")

    def remedy(self, context: CaseContext) -> str:
        """Room for the numbers, and a start from before they were lost."""
        return (
            "Stop it: weights that are no numbers do not heal. Go on from the last checkpoint "
            f"before the onset, in bfloat16 ({describe_setting('bf16', context.metadata)}) if the GPU has it, with "
            f"{describe_setting('gradient clipping', context.metadata)} at 1 and "
            f"{describe_setting('learning rate', context.metadata)} halved. If it comes back at the same step, the "
            "batch of that step is to blame: look at it."
        )
