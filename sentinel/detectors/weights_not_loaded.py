"""Weights not loaded: the model that is trained has random weights, although one was loaded.

Formula
    Finding  = `load_state_dict(..., strict=False)` set at most 10 % of the tensors of the module,
               and used at most 10 % of those that it was given; or
               Transformers initialized weights with at least half of the elements of a model that
               `from_pretrained` loaded

Units
    There are no settings. Loads: the last one into each module before the 4th step of the training.

Source
    Checkpoints of wrapped models, whose names begin with `module.` or `_orig_mod.`, and the warning
    of Transformers that weights are newly initialized.

Defaults
    A new head is a small part of a model. A load of adapters, or of the part that two models have
    in common, uses what it is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sentinel.detectors._training_check import Problem, ReportedCheck
from sentinel.model.finding import Severity


@dataclass
class WeightsNotLoaded(ReportedCheck):
    """Evaluates the check `loaded_weights`."""

    check = "loaded_weights"
    unreported = "No checkpoint was loaded into the trained model."
    signal = "loss"
    remedy = (
        "Compare the names of the checkpoint with those of `model.state_dict()`, and remove a "
        "prefix such as `module.`, `_orig_mod.` or `model.`. Load with `strict=True`, which raises "
        "an error; with Transformers, load the class of model that was saved."
    )
    problems: ClassVar[Mapping[str, Problem]] = {
        "not_loaded": Problem(
            "The checkpoint did not give the model its weights: those of {modules} are newly "
            "initialized.",
            f"Stop the run: it trains from random weights. {remedy}",
            Severity.CRITICAL,
        )
    }
