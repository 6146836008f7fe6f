"""Evaluation in training mode: dropout and batch normalization are on while the model is evaluated.

Formula
    evaluation = a pass over another data set than that of the training, in which the model computes
                 without gradients; the training then goes on with its own data. All of a pass, if
                 the training has no data loader
    Finding    = a trained module with dropout or batch normalization is in training mode in the
                 first two forward passes of an evaluation; or
                 after `eval()` a module of the model in evaluation mode calls `functional.dropout`
                 or attention with dropout that is active, without gradients

Units
    There are no settings. Evaluations: those that begin in a step that the checks observe, or at
    the end of a pass over the training data.

Source
    huggingface/transformers issue 33844: dropout stays active in evaluation. With batch
    normalization, the statistics of the model then take in the held-out data.

Defaults
    Modules of dropout that are on in a model in evaluation mode, code that passes a mode to
    `functional.dropout`, whatever it is, and statistics that are computed anew, without momentum or
    with one of 1 (`torch.optim.swa_utils.update_bn`), are on purpose. Passes over the training data
    and compiled models are left out, and so is the mode of modules if the batches of the evaluation
    do not come from a DataLoader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sentinel.detectors._training_check import Problem, ReportedCheck


class EvaluationInTrainingMode(ReportedCheck):
    """Evaluates the check `evaluation`."""

    check = "evaluation"
    unreported = (
        "The check needs 2 batches of an evaluation whose data come from another DataLoader, and a "
        "model with dropout or batch normalization."
    )
    signal = "eval_loss"
    remedy = (
        "Call `model.eval()` before each evaluation and `model.train()` after it. "
        "`torch.no_grad()` does not change the mode. Do not compare the held-out results so far "
        "with later ones."
    )
    problems: ClassVar[Mapping[str, Problem]] = {
        "training_mode": Problem(
            "The model is evaluated in training mode, with {kinds} as in training.", remedy
        ),
        "functional_dropout": Problem(
            "Dropout is active in evaluation mode: `forward` of {kind} calls a function with "
            "dropout without the mode of the model, so that results are random.",
            "Call `functional.dropout(..., training=self.training)`, whose default is to be "
            "active, and attention with `dropout_p=self.dropout if self.training else 0.0`; or use "
            "the module `nn.Dropout`. Evaluate again: the results so far are too low.",
        ),
    }
