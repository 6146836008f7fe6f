"""Unexpected weight changes: trained weights are set anew between two steps, or frozen ones move.

Formula
    relation = the correlation of 64 elements of a matrix after a step with the same elements before
               the next step, or that of their sizes, whichever is larger
    Finding  = the relation is below 0.5, over 90 % of the elements have changed, and most are not
               0: in half of the matrices, or in one of a linear layer or a convolution; or
               two steps in a row change a weight that requires no gradient; or
               two modules no longer have the weight that they had in common after the first step;
               or the optimizer trains two models of the same structure, which have over 90 % of its
               weights, one in training mode and one in evaluation mode

Units
    There are no settings. Compared: at most 32 matrices before each of the first 18 steps.

Source
    huggingface/transformers issue 17877: initialization runs again over weights. The notes of
    PyTorch on optimizers: a weight that is frozen while it has a gradient of zeros still moves, by
    momentum and weight decay.

Defaults
    Clipping to any bound leaves a correlation of 0.8, averages and masks a larger one; two
    initializations have none, to within 0.125. Loads by `load_state_dict` are on purpose. A swap
    for an evaluation, as of averaged weights, is over before the next step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sentinel.detectors._training_check import Problem, ReportedCheck


class UnexpectedWeightChanges(ReportedCheck):
    """Evaluates the check `weight_changes`."""

    check = "weight_changes"
    unreported = "The check needs 6 updates of weights that are matrices."
    signal = "loss"
    remedy = (
        "Look for code that sets weights between two steps: an initialization that runs again, or "
        "a copy from another model. Give the optimizer only weights that are to be trained."
    )
    problems: ClassVar[Mapping[str, Problem]] = {
        "set_anew": Problem(
            "The weights of {modules} were set anew between two steps: what the steps before "
            "changed is lost.",
            "Look for code that initializes or copies weights after the training has begun, such "
            "as `model.apply(...)`, `reset_parameters()` or `post_init()` inside the loop. Resume "
            "from a checkpoint before the onset, or start the run again.",
        ),
        "untied": Problem(
            "Weights that were tied are no longer one tensor: {weights}. From now on each copy is "
            "trained by itself.",
            "Tie them again, with Transformers by `model.tie_weights()`, and create the optimizer "
            "after it. Look for code that assigns a new `nn.Parameter`, or resizes an embedding, "
            "within the training.",
        ),
        "second_model": Problem(
            "The optimizer also trains a second model of the same structure, a `{kind}` in "
            "evaluation mode, as a reference or a teacher is.",
            "Give the optimizer only the parameters of the model that is to be trained, and call "
            "`requires_grad_(False)` on the reference. If both are to be trained, call `train()` "
            "on both.",
        ),
        "frozen": Problem(
            "Steps change weights that are frozen, those of {modules}: they still have a gradient "
            "from before.",
            "Set their gradients to None after `requires_grad_(False)`, with "
            "`optimizer.zero_grad(set_to_none=True)`, or leave them out of the optimizer: with a "
            "gradient of zeros, momentum and weight decay still change them.",
        ),
    }
