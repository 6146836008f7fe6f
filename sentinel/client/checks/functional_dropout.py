"""Functional dropout: whether a model in evaluation mode calls dropout that is active.

`functional.dropout` and the dropout of attention are given the mode by the code that calls them,
and no module shows whether it is right. Both functions are observed from `model.eval()` up to the
next backward pass or save, in a few evaluations. Code that passes a mode to `functional.dropout`
has one on purpose, as for samples of predictions.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

MAX_CALLS = 16
"""Calls after which the functions are no longer observed in one evaluation: those of one pass."""


class DropoutCalls:
    """Observes the calls of dropout by these modules until `close`, or `MAX_CALLS` of them."""

    def __init__(self, modules: Collection[int], count_error: Callable[[Exception], None]) -> None:
        self._modules, self._count_error = modules, count_error
        """Ids of the modules, and what is called with an error."""
        self._calls = 0
        self.found = ""
        """The kind of the first module that calls active dropout in evaluation mode."""
        functional = self._functional = sys.modules["torch"].nn.functional
        self._originals = {name: getattr(functional, name) for name in _IS_ACTIVE}
        self._observed = {name: self._observe(name) for name in _IS_ACTIVE}
        for name, observed in self._observed.items():
            setattr(functional, name, observed)
        self._register_operators()

    def close(self) -> None:
        """Restore the functions, unless something else has replaced them since."""
        for name, observed in self._observed.items():
            if getattr(self._functional, name) is observed:
                setattr(self._functional, name, self._originals[name])
            self._operators.pop(id(observed), None)

    def _register_operators(self) -> None:
        """Let TorchScript compile code that calls the functions meanwhile, as for an export."""
        table = getattr(sys.modules["torch.jit._builtins"], "_get_builtin_table", dict)
        self._operators: dict[int, str] = table()
        for name, observed in self._observed.items():
            operator = self._operators.get(id(self._originals[name]))
            if operator is not None:
                self._operators[id(observed)] = operator

    def _observe(self, name: str) -> Callable[..., Any]:
        original, is_active = self._originals[name], _IS_ACTIVE[name]
        is_compiling = sys.modules["torch"].compiler.is_compiling

        @functools.wraps(original)
        def observed(*args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and self._calls < MAX_CALLS:
                try:
                    self._calls += 1
                    if self._calls == MAX_CALLS:
                        self.close()
                    if is_active(args, kwargs):
                        self._add(sys._getframe(1))  # noqa: SLF001 - as `inspect` does
                except Exception as error:
                    # Whatever the arguments are, the function is called.
                    self._calls = MAX_CALLS
                    self._count_error(error)
            return original(*args, **kwargs)

        # TorchScript compiles what this gives.
        vars(observed)["__prepare_scriptable__"] = lambda: original
        return observed

    def _add(self, caller: FrameType) -> None:
        """Active dropout is called from there."""
        torch, known = sys.modules["torch"], caller.f_locals
        module = next((known[name] for name in ("self", "module") if name in known), None)
        if module is None or id(module) not in self._modules or torch.is_grad_enabled():
            return
        if not module.training and not _is_on_purpose(caller):
            self.found = self.found or type(module).__name__


def _is_on_purpose(caller: FrameType) -> bool:
    """Whether the code says `training=True` and never the mode, as for samples of predictions."""
    code = caller.f_code
    is_named = any(isinstance(each, tuple) and "training" in each for each in code.co_consts)
    return is_named and "training" not in (*code.co_names, *code.co_varnames)


def _argument(args: Any, kwargs: Any, at: int, name: str, default: Any) -> Any:
    return args[at] if len(args) > at else kwargs.get(name, default)


def _is_active_dropout(args: Any, kwargs: Any) -> bool:
    has_mode = len(args) > 2 or "training" in kwargs
    return not has_mode and bool(_argument(args, kwargs, 1, "p", 0.5) != 0.0)


def _is_active_attention(args: Any, kwargs: Any) -> bool:
    return bool(_argument(args, kwargs, 4, "dropout_p", 0.0) != 0.0)


_IS_ACTIVE: dict[str, Callable[[Any, Any], bool]] = {
    "dropout": _is_active_dropout,
    "scaled_dot_product_attention": _is_active_attention,
}
"""Whether a call with these arguments sets elements to 0 whatever the mode, by the name of the
function."""
