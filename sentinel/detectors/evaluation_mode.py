"""Evaluation mode: the model is trained while its dropout and batch normalization are off.

Formula
    Finding  = the model and all its modules with dropout or batch normalization that are trained
               are in evaluation mode at 3 backward passes in a row

Units
    There are no settings. The mode is read at a few passes of every 100 steps.

Source
    `model.eval()` before a validation without `model.train()` after it; models that Transformers
    loads are in evaluation mode.

Defaults
    Some modules in evaluation mode, such as frozen batch normalization, are on purpose. Models
    without dropout and batch normalization compute the same in both modes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sentinel.detectors._training_check import Problem, ReportedCheck


class EvaluationMode(ReportedCheck):
    """Evaluates the check `mode`."""

    check = "mode"
    unreported = (
        "No trained module with dropout or batch normalization is known. One of a model that was "
        "made before the monitored function is not, if its parameters are not asked for inside it."
    )
    signal = "loss"
    remedy = (
        "Call `model.train()` before each training step that follows an evaluation, and after "
        "the model is loaded. To train without dropout on purpose, set its probability to 0."
    )
    problems: ClassVar[Mapping[str, Problem]] = {
        "evaluation_mode": Problem(
            "The model is trained in evaluation mode, with {kinds} as in an evaluation.", remedy
        )
    }
