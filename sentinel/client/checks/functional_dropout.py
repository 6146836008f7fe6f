"""Functional dropout: whether a model in evaluation mode calls dropout that is active.

`functional.dropout` and the dropout of attention are given the mode by the code that calls them,
and no module shows whether it is right. Both functions are observed from `model.eval()` up to the
next backward pass or save, in a few evaluations. Code that passes a mode to `functional.dropout`
has one on purpose, as for samples of predictions.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

from sentinel.client.checks.function_calls import FunctionCalls

MAX_CALLS = 16
"""Calls after which the functions are no longer observed in one evaluation: those of one pass."""


class DropoutCalls(FunctionCalls):
    """Observes the calls of dropout by these modules until `close`, or `MAX_CALLS` of them."""

    def __init__(self, modules: Collection[int], count_error: Callable[[Exception], None]) -> None:
        super().__init__(_IS_ACTIVE, MAX_CALLS, count_error)
        self._modules = modules
        """Their ids."""
        self._kinds: dict[int, str] = {}
        self._active_calls = Counter[int]()
        """Calls of active dropout in evaluation mode, by the module that calls it."""
        self.batches = 0
        """Batches that a data loader gave meanwhile."""

    @property
    def found(self) -> str:
        """The kind of the first module that calls active dropout in evaluation mode, or "".

        None does if the model computes each batch several times, as for samples of predictions.
        """
        is_sampling = 0 < 2 * self.batches <= max(self._active_calls.values(), default=0)
        return "" if is_sampling else next(iter(self._kinds.values()), "")

    def _add(self, name: str, args: Any, kwargs: Any, caller: FrameType) -> None:
        torch, known = sys.modules["torch"], caller.f_locals
        module = next((known[each] for each in ("self", "module") if each in known), None)
        if module is None or id(module) not in self._modules or torch.is_grad_enabled():
            return
        if _IS_ACTIVE[name](args, kwargs, caller) and not module.training:
            self._active_calls[id(module)] += 1
            self._kinds.setdefault(id(module), type(module).__name__)


def _is_on_purpose(caller: FrameType) -> bool:
    """Whether the code says `training=True` and never the mode, as for samples of predictions."""
    code = caller.f_code
    is_named = any(isinstance(each, tuple) and "training" in each for each in code.co_consts)
    return is_named and "training" not in (*code.co_names, *code.co_varnames)


def _argument(args: Any, kwargs: Any, at: int, name: str, default: Any) -> Any:
    return args[at] if len(args) > at else kwargs.get(name, default)


def _is_active_dropout(args: Any, kwargs: Any, caller: FrameType) -> bool:
    has_mode = len(args) > 2 or "training" in kwargs
    is_on = bool(_argument(args, kwargs, 1, "p", 0.5) != 0.0)
    return is_on and not has_mode and not _is_on_purpose(caller)


def _is_active_attention(args: Any, kwargs: Any, _: FrameType) -> bool:
    return bool(_argument(args, kwargs, 4, "dropout_p", 0.0) != 0.0)


_IS_ACTIVE: dict[str, Callable[[Any, Any, FrameType], bool]] = {
    "dropout": _is_active_dropout,
    "scaled_dot_product_attention": _is_active_attention,
}
"""Whether a call with these arguments sets elements to 0 whatever the mode, and not on purpose, by
the name of the function."""
