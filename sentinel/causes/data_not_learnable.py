"""Data not learnable: the model is trained, but the data contains nothing that it can learn.

Labels that belong to other inputs, a chat template that the model does not know, swapped chosen and
rejected completions, inputs truncated before the relevant part.

Evidence
    A loss that never moved is the main evidence. A gradient norm and a learning rate above 0
    exclude weights that are not trained, and so does no layer whose gradient is dead, vanishes or
    explodes. Where only a learning rate above 0 is known, it is the most probable cause, and
    weights that are not trained remain possible. A loss that jumps or diverges after it was flat
    has another cause. A loss of ln 2 is that of random guessing between two alternatives.

Source
    Zhang et al. 2017 (arXiv:1611.03530): with shuffled labels the loss stays at that of guessing
    until the examples are memorised. Tiny trainings with shuffled labels, in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, log
from typing import ClassVar

from sentinel.causes._evidence import (
    StatedCause,
    is_reported,
    low_learning_rate_evidence,
    weighted_evidence,
)
from sentinel.model.diagnosis import CaseContext, Evidence

MIN_GRAD_NORM = 1e-4
"""Smallest gradient norm that counts as a gradient."""

BROKEN_LAYER_DETECTORS = (
    "layer_gradient_dead", "layer_gradient_exploding", "layer_gradient_vanishing",
    "layer_update_ratio",
)  # fmt: skip
"""Detectors of layers that hardly learn, whatever the data."""

CHANCE_LOSS, CHANCE_TOLERANCE = log(2.0), 0.02


class DataNotLearnable(StatedCause):
    """Diagnoses by a loss that never moved although the weights are trained."""

    title = "data with nothing to learn"
    explains = frozenset({"loss_never_moved", "loss_plateau"})
    suggested_by: ClassVar[Mapping[str, float]] = {
        "loss_never_moved": 0.4,
        "loss_plateau": 0.35,
        "reward_stalled": 0.25,
    }
    sign = (
        "16 examples alone are learned, while the gradient norm (log `grad_norm`) is above 0 "
        "in the run"
    )
    advice = (
        "Print one batch as the model receives it, decoded, with its labels. Check that they "
        "belong together, that the chat template is the model's own, that the answer is within "
        "{maximum sequence length}, and that chosen and rejected completions are not swapped. Then "
        "train on 16 examples: if that loss does not fall to nearly 0 either, the optimizer holds "
        "other parameters than the model."
    )
    excluded_by = frozenset({"loss_divergence", "loss_spike"})

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        """The loss, gradient norm and learning rate; nothing if there are no gradients."""
        never_moved = context.symptoms.get("loss_never_moved")
        norm = context.values.get("grad_norm", inf)
        rate = context.values.get("learning_rate", context.number("learning_rate") or 0.0)
        excluding = context.earliest("grad_vanishing", "nan_or_inf", "learning_rate_anomaly")
        layers = context.earliest_in_run(*BROKEN_LAYER_DETECTORS)
        if (
            never_moved is None
            or excluding is not None
            or is_reported(layers)
            or norm < MIN_GRAD_NORM
            or any(low_learning_rate_evidence(context))
        ):
            return
        yield from weighted_evidence(context, {"loss_never_moved": 0.5, "loss_plateau": 0.1})
        level = never_moved.evidence.get("median_loss")
        is_chance = isinstance(level, float | int) and abs(level - CHANCE_LOSS) < CHANCE_TOLERANCE
        if is_chance:
            yield Evidence(0.3, f"The loss is {level:.3f}, that of random guessing (ln 2).")
        if norm < inf:
            yield Evidence(0.3, f"The gradient norm is {norm:.3g}, so the weights are trained.")
        if rate > 0.0:
            # A rate alone does not show that the weights are trained.
            unknown = "" if is_chance or norm < inf else ", but no gradient norm is logged"
            yield Evidence(0.2, f"The learning rate is {rate:g}, not 0{unknown}.")

    def contradictions(self, context: CaseContext) -> Iterable[str]:
        """A loss that swings far, or weights that do not change, are another reason."""
        not_updated = context.earliest_in_run("weights_not_updated")
        if is_reported(not_updated):
            yield not_updated.summary
        swing = context.symptoms.get("oscillation")
        if is_reported(swing):
            yield swing.summary
