"""Functions of `torch.nn.functional` whose calls are observed for a short time."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any


class FunctionCalls:
    """Observes calls of these functions until `close`, or `max_calls` of them.

    A subclass looks at each call in `_add`. Errors in it are given to `count_error`.
    """

    def __init__(
        self, names: Iterable[str], max_calls: int, count_error: Callable[[Exception], None]
    ) -> None:
        self._calls_left, self._count_error = max_calls, count_error
        functional = self._functional = sys.modules["torch"].nn.functional
        self._originals = {name: getattr(functional, name) for name in names}
        self._observed = {name: self._observe(name) for name in self._originals}
        for name, observed in self._observed.items():
            setattr(functional, name, observed)
        self._register_operators()

    @property
    def is_open(self) -> bool:
        """Whether further calls are observed."""
        return self._calls_left > 0

    def close(self) -> None:
        """Restore the functions, unless something else has replaced them since."""
        self._calls_left = 0
        for name, observed in self._observed.items():
            if getattr(self._functional, name) is observed:
                setattr(self._functional, name, self._originals[name])
            self._operators.pop(id(observed), None)

    def _add(self, name: str, args: Any, kwargs: Any, caller: FrameType) -> None:
        """A function is called from there with these arguments."""
        raise NotImplementedError

    def _register_operators(self) -> None:
        """Let TorchScript compile code that calls the functions meanwhile, as for an export."""
        table = getattr(sys.modules["torch.jit._builtins"], "_get_builtin_table", dict)
        self._operators: dict[int, str] = table()
        for name, observed in self._observed.items():
            operator = self._operators.get(id(self._originals[name]))
            if operator is not None:
                self._operators[id(observed)] = operator

    def _observe(self, name: str) -> Callable[..., Any]:
        original = self._originals[name]
        is_compiling = sys.modules["torch"].compiler.is_compiling

        @functools.wraps(original)
        def observed(*args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and self._calls_left:
                try:
                    self._calls_left -= 1
                    self._add(name, args, kwargs, sys._getframe(1))  # noqa: SLF001 - as `inspect` does
                    if not self._calls_left:
                        self.close()
                except Exception as error:
                    # Whatever the arguments are, the function is called.
                    self._calls_left = 0
                    self._count_error(error)
            return original(*args, **kwargs)

        # TorchScript compiles what this gives.
        vars(observed)["__prepare_scriptable__"] = lambda: original
        return observed


class LossCalls(FunctionCalls):
    """Observes whether a loss is computed without gradients, as in an evaluation.

    Passes over data that compute none are on purpose in any mode: they estimate statistics again,
    or score a pool of examples.
    """

    names = (
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "ctc_loss",
        "huber_loss", "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss",
    )  # fmt: skip

    def __init__(self, count_error: Callable[[Exception], None]) -> None:
        super().__init__(self.names, 1, count_error)
        self.found = False

    def _add(self, *_: Any) -> None:
        self.found = not sys.modules["torch"].is_grad_enabled()
