"""Inputs: whether the images of a call of the model belong to as many examples as its tokens.

A processor that puts all images of a batch into one row gives them the shape `(1, examples, ...)`
in place of `(examples, images, ...)`, which most operations accept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

from sentinel.client.checks.check import Check, Evidence
from sentinel.client.checks.evaluation import compiled_frames

LAST_STEP = 4
"""The step after which the calls of the model are no longer looked at."""
CALLS_TO_JUDGE = 2
IMAGE_NAMES = ("pixel", "image")


class Inputs(Check):
    """Looks at the named inputs of the first calls of the model after the first step."""

    name: ClassVar[str] = "inputs"
    _hook: _CallHook | None = None

    def on_begin(self) -> None:
        """Wait for the calls, unless the model is compiled: it would be compiled again."""
        root = self.training.find_model()
        if root is not None and compiled_frames() == self.training.process.frames_before:
            self._hook = _CallHook(root, self._add, self.training.process.count_error)

    def after_step(self) -> None:
        """Leave no hook on the model."""
        if self.training.steps >= LAST_STEP:
            self.close()

    def on_eval(self, module: Any) -> None:
        """Leave no hook on a model that may be exported: TorchScript would compile it."""
        if module is self.training.find_model():
            self.close()

    def close(self) -> None:
        """Leave no hook on the model."""
        if self._hook is not None:
            self._hook.handle.remove()
            self._hook = None

    def _add(self, inputs: Mapping[str, Any]) -> None:
        tokens = inputs.get("input_ids")
        images = [
            each
            for name, each in inputs.items()
            if any(part in name for part in IMAGE_NAMES) and each.dim() > 2
        ]
        if tokens is None or tokens.dim() != 2 or not images:
            return
        examples = len(tokens)
        self.count(is_wrong=examples > 1 and images[0].shape[:2] == (1, examples))
        if self.wrong_count == CALLS_TO_JUDGE:
            evidence: Evidence = {"examples": float(examples), "shape": str(tuple(images[0].shape))}
            self.set_result("images_in_one_row", evidence)
        elif self.right_count == CALLS_TO_JUDGE:
            self.set_result("")


class _CallHook:
    """A hook before the calls of a model, which gives its named tensors to `add`.

    While it waits the model can be pickled and copied: instead of the hook a file, or a copy, has
    a method of Python that ignores its arguments.
    """

    def __init__(
        self,
        model: Any,
        add: Callable[[Mapping[str, Any]], None],
        count_error: Callable[[Exception], None],
    ) -> None:
        self.add, self.count_error = add, count_error
        self.handle = model.register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, _: Any, args: Any, kwargs: Any) -> None:
        """The model is called."""
        torch = sys.modules["torch"]
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        try:
            named = args[0] if args and isinstance(args[0], Mapping) else {}
            inputs = {**named, **kwargs}
            self.add({at: each for at, each in inputs.items() if isinstance(each, torch.Tensor)})
        except Exception as error:
            # Whatever the inputs are, the model is called.
            self.handle.remove()
            self.count_error(error)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")

    def __deepcopy__(self, _: dict[int, Any]) -> Any:
        return nullcontext().__exit__
