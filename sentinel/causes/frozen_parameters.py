"""Frozen parameters: what should be trained is not, from the first step on.

Adapters that hang on no output, `requires_grad` False, an optimizer without the parameters that
matter, a learning rate of 0: the run costs what a training costs, and changes nothing.

Clues
    A gradient of exactly 0 from the first step on, or a learning rate that never was over 0, is
    proof by itself. A loss or a reward that never moved follows from it. Groups of answers without
    a spread of rewards, labels that are all masked and losses that are no numbers leave no gradient
    either, and are other causes.

Source
    locuslab/open-unlearning issue 178 and huggingface/peft issue 137: adapters that no gradient
    reached beside gradient checkpointing, since no input required one. Tiny trainings of frozen
    weights, in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.causes._evidence import symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence, Symptom
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

NEGLIGIBLE_GRAD_NORM = 1e-7
"""Gradient norm that moves no weight."""


class FrozenParameters:
    """Judges by gradients, or a learning rate, that were 0 from the start."""

    title: ClassVar[str] = "frozen parameters: nothing is trained"
    explains: ClassVar[frozenset[str]] = frozenset({
        "grad_vanishing", "learning_rate_anomaly", "loss_never_moved", "loss_plateau",
        "reward_stalled",
    })  # fmt: skip
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """Nothing to train by from the start, and a loss or reward that shows it."""
        if context.earliest_symptom("reward_zero_variance", "loss_zero", "nan_or_inf") is not None:
            return
        still = _zero_from_start(context.symptoms.get("grad_vanishing"), "usual")
        no_rate = _zero_from_start(context.symptoms.get("learning_rate_anomaly"), "highest", None)
        stands = context.earliest_symptom("loss_never_moved", "reward_stalled")
        norm = context.values.get("grad_norm")
        faint = (
            still is None
            and stands is not None
            and norm is not None
            and 0 <= norm < NEGLIGIBLE_GRAD_NORM
        )
        if still is None and no_rate is None and not faint:
            return
        yield from symptom_evidence(still, 0.65)
        yield from symptom_evidence(no_rate, 0.8)
        yield from symptom_evidence(stands, 0.5)
        if faint:
            yield Evidence(0.5, f"The gradient norm is {norm:.2g}, which moves no weight.")

    def remedy(self, context: CaseContext) -> str:
        """What to count, and where adapters lose their gradient."""
        return (
            "Stop it. Count the parameters that require a gradient and are in the optimizer "
            "(`sum(p.numel() for p in model.parameters() if p.requires_grad)`), and see that "
            f"{describe_setting('learning rate', context.metadata)} is not 0. With adapters and gradient "
            "checkpointing call `model.enable_input_require_grads()`, and see that the adapter is "
            "the active one. Checkpoints of this run hold the weights that it began with."
        )


def _zero_from_start(
    symptom: Symptom | None, evidence_key: str, default: float | None = 0.0
) -> Symptom | None:
    """The sign, if what it was before (its evidence of that name) is 0: it never was anything."""
    if symptom is None or symptom.severity is Severity.INFO:
        return None
    return symptom if symptom.evidence.get(evidence_key, default) == 0.0 else None
