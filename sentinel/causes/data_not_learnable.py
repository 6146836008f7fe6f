"""Data not learnable: the model is trained, and there is nothing in the data for it to learn.

Labels that belong to other inputs, a chat template that the model never sees again, chosen and
rejected answers mixed up, inputs that were cut off before what matters.

Clues
    A loss that never moved is the heart of it; that gradients flow, and that the learning rate is
    not 0, tell it from weights that do not train. A loss that stands at ln 2 is that of a choice
    made by tossing a coin.

Source
    Zhang et al. 2017 (arXiv:1611.03530): with shuffled labels the loss stays at that of guessing
    until the examples themselves are known by heart. Tiny trainings with shuffled labels, in the
    tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, log
from typing import ClassVar

from sentinel.causes._evidence import low_learning_rate_evidence, symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import describe_setting

MIN_GRAD_NORM = 1e-4
"""Gradient norm from which on there is a gradient to speak of."""

COIN_FLIP_LOSS, COIN_FLIP_TOLERANCE = log(2.0), 0.02


class DataNotLearnable:
    """Judges by a loss that never moved although the weights did."""

    title: ClassVar[str] = "nothing in the data can be learnt"
    explains: ClassVar[frozenset[str]] = frozenset({"loss_never_moved", "loss_plateau"})
    severity: ClassVar[Severity | None] = None

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The loss, and that the model does train; nothing where its gradients are gone."""
        never, norm = context.symptoms.get("loss_never_moved"), context.values.get("grad_norm", inf)
        rate = context.values.get("learning_rate", context.number("learning_rate") or 0.0)
        other = context.earliest_symptom("grad_vanishing", "nan_or_inf", "learning_rate_anomaly")
        if (
            never is None
            or other is not None
            or norm < MIN_GRAD_NORM
            or any(low_learning_rate_evidence(context))
        ):
            return
        yield from symptom_evidence(never, 0.5)
        yield from symptom_evidence(context.symptoms.get("loss_plateau"), 0.1)
        level = never.evidence.get("level")
        if isinstance(level, float | int) and abs(level - COIN_FLIP_LOSS) < COIN_FLIP_TOLERANCE:
            yield Evidence(0.3, f"The loss stands at {level:.3f}, what tossing a coin costs.")
        if norm < inf:
            yield Evidence(0.3, f"Gradients flow: their norm is {norm:.3g}.")
        if rate > 0.0:
            yield Evidence(0.2, f"The learning rate is {rate:g}, not 0.")

    def remedy(self, context: CaseContext) -> str:
        """Look at the data before anything else."""
        return (
            "Print one batch as the model gets it, decoded, with its labels: do they belong "
            "together, is the chat template the model's own, is the answer inside "
            f"{describe_setting('maximum sequence length', context.metadata)}, are chosen and rejected the right way round? "
            "Then train on 16 examples alone: if that loss does not fall to nearly 0 either, the "
            "optimizer holds other parameters than the model."
        )
