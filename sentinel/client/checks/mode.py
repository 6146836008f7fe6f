"""Mode: whether modules that act differently in evaluation mode are in it during a training step.

Dropout does nothing in evaluation mode, and batch normalization uses, and does not update, its
running statistics. Where only some of these modules are in evaluation mode, it is on purpose.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from itertools import chain
from typing import Any, ClassVar
from weakref import ref

from sentinel.client.capture.owned_modules import existing, modules_of, parameters_of
from sentinel.client.checks.check import Check, CheckedTraining

FIRST_STEP = 3
"""The step before which the modules are looked for."""
UPDATES_TO_JUDGE = 3
"""Updates in a row of one mode."""


class TrainingMode(Check):
    """Looks at the mode of the model before the last backward pass of each update.

    Passes before it may be of an attack or of another model, which are evaluated on purpose.
    """

    name: ClassVar[str] = "mode"

    def __init__(self, training: CheckedTraining) -> None:
        super().__init__(training)
        self._modules: list[Callable[[], Any]] = []
        """Weak references to the modules whose mode matters."""
        self._owners: list[Callable[[], Any]] = []
        """Weak references to the modules that have trained parameters themselves, also of a head
        that is a model of its own; a wrapper may be in another mode than what it contains."""
        self._evaluating: list[str] = []
        """The kinds of these modules if all were in evaluation mode at the last pass."""
        self._has_pass = False

    def before_backward(self) -> None:
        """Look at the mode."""
        modules = existing(self._modules)
        if not modules:
            return
        self._has_pass = True
        # Nearly always the first one is in training mode.
        owners = (known() for known in self._owners)
        is_evaluating = not any(
            each.training for each in chain(modules, owners) if each is not None
        )
        self._evaluating = sorted(
            {type(each).__name__ for each in modules} if is_evaluating else ()
        )

    def after_step(self) -> None:
        """Judge the update; find the modules, once."""
        if self.training.steps == FIRST_STEP - 1:
            root = self.training.find_model()
            ids = {*map(id, self.training.parameters)}
            found = [] if root is None else modules_by_mode(root, ids)
            self._modules = [ref(each) for each in found]
            owners = {
                id(module): module
                for each in self.training.process.seen_modules.modules()
                for _, module in modules_of(each)
                if any(id(weight) in ids for _, weight in parameters_of(module))
            }
            self._owners = [ref(each) for each in owners.values()]
        if not self._has_pass:
            return
        self._has_pass = False
        self.count(is_wrong=bool(self._evaluating))
        if self.wrong_count >= UPDATES_TO_JUDGE:
            self.set_result("evaluation_mode", {"kinds": ", ".join(self._evaluating)})
        elif self.right_count >= UPDATES_TO_JUDGE:
            self.set_result("")


def modules_by_mode(root: Any, ids: Collection[int]) -> list[Any]:
    """The trained modules that act differently in evaluation mode.

    Dropout is trained with what is beside it, or beside its container.
    """
    nn = sys.modules["torch"].nn
    norms, dropouts = nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd  # noqa: SLF001
    modules = modules_of(root)
    trained: set[str] = set()
    for path, module in modules:
        if any(id(each) in ids for _, each in parameters_of(module)):
            parts = path.split(".") if path else []
            trained.update(".".join(parts[:count]) for count in range(len(parts) + 1))
    found = []
    for path, module in modules:
        parent = path.rpartition(".")[0]
        beside = {parent, parent.rpartition(".")[0]}
        if (isinstance(module, norms) and path in trained) or (
            isinstance(module, dropouts) and module.p and not beside.isdisjoint(trained)
        ):
            found.append(module)
    return found
