"""Mode: whether modules that act differently in evaluation mode are in it during a training step.

Dropout does nothing in evaluation mode, and batch normalization uses, and does not update, its
running statistics. Where only some of these modules are in evaluation mode, it is on purpose.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import Any, ClassVar
from weakref import ref

from sentinel.client.capture.owned_modules import modules_of, parameters_of
from sentinel.client.checks.check import Check, CheckedTraining

FIRST_STEP = 3
"""The step before which the modules are looked for."""
PASSES_TO_JUDGE = 3
"""Backward passes in a row of one mode."""


class TrainingMode(Check):
    """Looks at the mode of the model before backward passes."""

    name: ClassVar[str] = "mode"

    def __init__(self, training: CheckedTraining) -> None:
        super().__init__(training)
        self._modules: list[Callable[[], Any]] = []
        """Weak references to the modules whose mode matters."""
        self._passes = [0, 0]
        """Passes in a row in training and in evaluation mode."""

    def before_backward(self) -> None:
        """Look at the mode."""
        if not self._modules:
            return
        root = self.training.find_model()
        modules = [each for each in (known() for known in self._modules) if each is not None]
        if root is None or not modules:
            return
        is_evaluating = not root.training and not any(each.training for each in modules)
        self._passes = [0, self._passes[1] + 1] if is_evaluating else [self._passes[0] + 1, 0]
        if self._passes[1] >= PASSES_TO_JUDGE:
            kinds = sorted({type(each).__name__ for each in modules})
            self.set_result("evaluation_mode", {"kinds": ", ".join(kinds)})
        elif self._passes[0] >= PASSES_TO_JUDGE:
            self.set_result("")

    def after_step(self) -> None:
        """Find the modules, once."""
        if self.training.steps == FIRST_STEP - 1:
            root = self.training.find_model()
            ids = {*map(id, self.training.parameters)}
            found = [] if root is None else modules_by_mode(root, ids)
            self._modules = [ref(each) for each in found]


def modules_by_mode(root: Any, ids: Collection[int]) -> list[Any]:
    """The modules beside or with trained parameters that act differently in evaluation mode."""
    nn = sys.modules["torch"].nn
    norms, dropouts = nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd  # noqa: SLF001
    found: dict[int, Any] = {}
    for _, module in modules_of(root):
        if isinstance(module, norms) and any(id(p) in ids for _, p in parameters_of(module)):
            found[id(module)] = module
        children = (vars(module).get("_modules") or {}).values()
        active = [each for each in children if isinstance(each, dropouts) and each.p]
        if active and any(
            id(p) in ids for _, below in modules_of(module) for _, p in parameters_of(below)
        ):
            found |= {id(each): each for each in active}
    return [*found.values()]
