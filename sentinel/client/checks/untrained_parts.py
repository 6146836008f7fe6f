"""Parts of a model that are to be trained and are not, where that is an error by itself.

Many trainings have parts without a gradient on purpose: heads of other tasks, experts without
tokens. Not so adapters of which none gets one, blocks whose checkpointing ends the graph, and
layers that no checkpoint gave its weights and no optimizer holds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import ref

from sentinel.client.capture.owned_modules import (
    existing,
    is_norm,
    modules_of,
    named_parameters,
    parameters_of,
)
from sentinel.client.checks.gradients import write_count

if TYPE_CHECKING:
    from sentinel.client.checks.loaded_weights import Loads

ADAPTER = re.compile(r"(?<![a-z])(lora|adapters?|ia3|vera)(?![a-z])")
"""The part of a name from which it is one of an adapter."""
MAX_NEW_SHARE = 0.5
"""Share of a model that may lack loaded weights, as a new head; most of one is loaded unseen."""
MAX_FRAMES = 6
"""Functions on the stack between a block that is recomputed and what observes it."""
MIN_SHARE_OF_TWO = 0.9
"""Share of the optimizer's elements that a model and its reference have together."""


def idle_adapters(
    root: Any, parameters: Collection[Any], with_gradient: AbstractSet[int]
) -> list[Any]:
    """The parameters of adapters that are not used, all of them.

    `parameters` are those of the optimizer, and `with_gradient` the ids of those that have had a
    gradient. Adapters of PEFT may be disabled instead.
    """
    held = {id(each) for each in parameters if each.requires_grad}
    names = [(name, each) for name, each in named_parameters(root) if ADAPTER.search(name.lower())]
    trained = [each for _, each in names if id(each) in held]
    if trained and with_gradient.isdisjoint(map(id, trained)):
        return trained
    disabled = [
        each
        for _, module in modules_of(root)
        if vars(module).get("_disable_adapters") is True
        for _, each in named_parameters(module)
    ]
    # Those that no optimizer holds are disabled on purpose, as where the head is trained alone.
    ids = {*map(id, disabled)} & {*map(id, parameters)}
    return [each for _, each in names if id(each) in ids]


def norms_trained_alone(root: Any, parameters: Iterable[Any], loads: Loads) -> list[Any]:
    """The trained parameters of a model, if all are of norms and nothing was ever loaded or read.

    Norms of a model with loaded weights are trained alone on purpose, also if these were copied one
    by one: then a frozen matrix was written more than once, as its construction does.
    """
    held = {id(each) for each in parameters if each.requires_grad}
    if loads.found or loads.has_file:
        return []
    trained = [
        (is_norm(module), each)
        for _, module in modules_of(root)
        for _, each in parameters_of(module)
        if id(each) in held
    ]
    frozen = [e for _, e in named_parameters(root) if e.dim() > 1 and not e.requires_grad]
    are_new = bool(frozen) and all(write_count(each) <= 1 for each in frozen)
    has_all = len(trained) == len(held) and all(is_of_norm for is_of_norm, _ in trained)
    return [each for _, each in trained] if has_all and are_new else []


def new_weights(root: Any, omitted: Iterable[Any], loads: Loads) -> list[Any]:
    """Those of the omitted parameters that a model has in place of loaded ones, as a new head.

    Empty if nothing was loaded into it, or if most of it was not.
    """
    loaded = {id(each) for load in loads.found.values() for each in existing(load.loaded)}
    sizes = {id(each): each.numel() for _, each in named_parameters(root)}
    new = sum(size for at, size in sizes.items() if at not in loaded)
    if new >= MAX_NEW_SHARE * sum(sizes.values()):
        return []
    return [each for each in omitted if id(each) in sizes and id(each) not in loaded]


class RecomputedBlocks:
    """Modules under reentrant checkpointing whose inputs need no gradient: they can get none."""

    def __init__(self) -> None:
        self._blocks: dict[int, list[Callable[[], Any]]] = {}
        """Weak references to the parameters of each block, by the id of the first one."""

    def add(self, inputs: Iterable[Any]) -> None:
        """A block begins its forward pass with these inputs, in a function of PyTorch."""
        if any(getattr(each, "requires_grad", False) for each in inputs):
            return
        module = _recomputed_module()
        own = [] if module is None else [each for _, each in named_parameters(module)]
        if own and id(own[0]) not in self._blocks:
            self._blocks[id(own[0])] = [ref(each) for each in own]

    def without_gradient(
        self, parameters: Iterable[Any], with_gradient: AbstractSet[int]
    ) -> list[Any]:
        """The parameters of the optimizer in those blocks that have never had a gradient.

        `with_gradient` has the ids of those that have had one: a block may be left out of a pass.
        """
        held = {id(each) for each in parameters if each.requires_grad}
        blocks = [
            [each for each in existing(references) if id(each) in held]
            for references in self._blocks.values()
        ]
        return [each for own in blocks if with_gradient.isdisjoint(map(id, own)) for each in own]


def _recomputed_module() -> Any:
    """The module that PyTorch's checkpointing runs now; None if it is another function."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as `inspect` does
    for _ in range(MAX_FRAMES):
        if frame is None or "run_function" in frame.f_locals:
            break
        frame = frame.f_back
    function = None if frame is None else frame.f_locals.get("run_function")
    # Transformers makes a partial of a method of the module, or of a function with the module.
    called = getattr(function, "func", function)
    candidates = (called, getattr(called, "__self__", None), *getattr(function, "args", ())[:1])
    kind = sys.modules["torch"].nn.Module
    return next((each for each in candidates if isinstance(each, kind)), None)


def second_models(roots: Iterable[Any], parameters: Iterable[Any]) -> list[Any]:
    """Models in evaluation mode that the optimizer trains beside one of the same structure.

    They are looked for among `roots` and the parts of these. Of `parameters`, those of the
    optimizer, the two have nearly all.
    """
    held = {id(each): each.numel() for each in parameters if each.grad is not None}
    found = with_parts(roots)
    waiting = [each for each in found.values() if not any(m.training for _, m in modules_of(each))]
    if not waiting:
        return []
    weights = {at: named_parameters(each) for at, each in found.items()}
    shapes = {at: [(name, each.shape) for name, each in own] for at, own in weights.items()}

    def is_trained_beside(one: int, other: int) -> bool:
        ids = {id(each) for at in (one, other) for _, each in weights[at]}
        has_all = len(ids) == 2 * len(weights[one]) and ids <= held.keys()
        return has_all and sum(map(held.__getitem__, ids)) > MIN_SHARE_OF_TWO * sum(held.values())

    return [
        model
        for model in waiting
        if any(
            other.training and shapes[at] == shapes[id(model)] and is_trained_beside(id(model), at)
            for at, other in found.items()
        )
    ]


def with_parts(roots: Iterable[Any]) -> dict[int, Any]:
    """These modules and the modules that they directly consist of, by id."""
    found = [each for root in roots for each in (root, *vars(root).get("_modules", {}).values())]
    return {id(each): each for each in found if each is not None}
