"""Set-up: how many parameters the model has, how many of them are trained, and of which types.

These are metadata of the run, and no result: frozen weights are on purpose.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, ClassVar

from sentinel.client.capture.owned_modules import named_parameters
from sentinel.client.checks.check import Check, Evidence
from sentinel.client.checks.mode import modules_by_mode
from sentinel.client.checks.weights import names_in_model, names_text
from sentinel.signals.run_metadata import ACTIVE_DROPOUT_KEY

STEP = 5
"""The step after which the parameters are counted: all optimizers have taken one."""


class SetUp(Check):
    """Counts the parameters of the model, once."""

    name: ClassVar[str] = "set_up"

    def after_step(self) -> None:
        """Record what the model consists of."""
        training = self.training
        if training.steps != STEP or training.process.rank:
            return
        trained = {
            id(each): each
            for optimizer in training.find_optimizers()
            for group in optimizer.param_groups
            for each in group["params"]
            if each.requires_grad
        }
        root = training.find_model()
        owned = {} if root is None else {id(each): each for _, each in named_parameters(root)}
        # Several optimizers may train several models.
        described = {**describe_parameters((trained | owned).values(), trained)}
        without = [each for each in trained.values() if each.grad is None]
        # All of them, if gradients are cleared with the step.
        if root is not None and 0 < len(without) < len(trained):
            described["modules_without_gradient"] = names_text(names_in_model(root, without))
        if root is not None:
            dropouts = {
                f"{type(each).__name__} of {each.p:g}"
                for each in modules_by_mode(root, trained.keys())
                if each.training and getattr(each, "p", 0.0)
            }
            described |= {ACTIVE_DROPOUT_KEY: ", ".join(sorted(dropouts))} if dropouts else {}
        training.process.record_metadata(described)


def describe_parameters(parameters: Iterable[Any], trained: Iterable[int]) -> Evidence:
    """The elements of the parameters, of those with the ids in `trained`, and by type.

    Those of this rank, where a rank holds a part as a plain tensor. Parameters without a shape yet
    are left out.
    """
    is_lazy, ids = sys.modules["torch"].nn.parameter.is_lazy, {*trained}
    known = [each for each in parameters if not is_lazy(each)]
    by_type: dict[str, int] = {}
    for each in known:
        name = str(each.dtype).removeprefix("torch.")
        by_type[name] = by_type.get(name, 0) + each.numel()
    return {
        "model_parameters": float(sum(by_type.values())),
        "trained_parameters": float(sum(each.numel() for each in known if id(each) in ids)),
        "parameter_types": ", ".join(sorted(by_type, key=by_type.__getitem__, reverse=True)),
    }
