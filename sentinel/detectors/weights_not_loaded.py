"""Weights not loaded: the model that is trained has other weights than those that were loaded.

Formula
    Finding  = `load_state_dict(..., strict=False)` set at most 10 % of the tensors of the module,
               and used at most 10 % of those that it was given; or
               Transformers initialized weights with at least half of the elements of a model that
               `from_pretrained` loaded; or
               after the first step at least 90 % of the matrices of a load on rank 0, which gives
               its weights to the others, have no relation to what was loaded: the correlation of 64
               elements, and that of their sizes, is below 0.5; or
               nothing is left of a load into a model that now has other weights under its names,
               or beside which the state of the optimizer was loaded; new weights of its shapes are
               trained beside frozen ones that were loaded, and have no relation to it either

Units
    There are no settings. Loads: the last one into each module before the 4th step of the training.

Source
    Checkpoints of wrapped models, whose names begin with `module.` or `_orig_mod.`, and the warning
    of Transformers that weights are newly initialized. huggingface/lerobot issue 3459: a loaded
    adapter is replaced by a new one. zshn25/DINOv2_mmseg pull request 1: the runner initializes the
    weights after they were loaded.

Defaults
    A new head is a small part of a model, and so are last layers that are initialized on purpose. A
    load of adapters, or of the part that two models have in common, uses what it is given. Weights
    that are quantized, pruned, merged or averaged are related to those before; those that are
    replaced by other tensors, or loaded again, are not compared. An adapter that is unloaded or
    deleted before a new one is added is dropped on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sentinel.detectors._training_check import Problem, ReportedCheck
from sentinel.model.finding import Severity


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
        ),
        "set_anew": Problem(
            "The weights that a checkpoint gave to {modules} were set anew before the first step: "
            "nothing of them is left.",
            "If no other weights were copied on purpose, stop the run: it does not train the "
            "loaded weights. Look for code that initializes or copies weights after the load, such "
            "as `model.apply(...)`, `init_weights()` or `reset_parameters()`, and load the "
            "checkpoint after it.",
            Severity.WARNING,
        ),
        "replaced": Problem(
            "The weights that a checkpoint gave to an adapter are gone: those that are trained in "
            "their place, of {modules}, are new.",
            "Look for code that adds the adapter again after it was loaded, such as a second "
            "`get_peft_model`. To go on with a loaded adapter of PEFT, call "
            "`PeftModel.from_pretrained(model, path, is_trainable=True)` alone.",
            Severity.WARNING,
        ),
    }
