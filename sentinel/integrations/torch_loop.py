"""Plain PyTorch: what any training loop does, whatever is built on top of it.

Taps: `Tensor.backward` and `autograd.backward` for the raw loss; the norm that `clip_grad_norm_`
computes; and the global hooks around `Optimizer.step`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from sentinel.hook.loop import in_graph
from sentinel.hook.tap import Tap, uncompiled

FRAMEWORK = "torch"


def attach(tap: Tap) -> None:
    """Put the taps in."""
    torch = sys.modules["torch"]
    from torch.nn.utils import clip_grad  # noqa: PLC0415 - only ever inside a trainer that has it
    from torch.optim import optimizer as optim  # noqa: PLC0415

    loop = tap.loop
    tap.replace(torch.Tensor, "backward", _around_backward(tap, "gradient"))
    tap.replace(torch.autograd, "backward", _around_backward(tap, "grad_tensors"))
    name = "_get_total_norm" if hasattr(clip_grad, "_get_total_norm") else "clip_grad_norm_"
    tap.replace(clip_grad, name, _around_norm(tap))
    if hasattr(torch.nn.utils, "get_total_norm"):
        # The same under another name, for those who clip in two steps.
        tap.replace(torch.nn.utils, "get_total_norm", _around_norm(tap))
    for register, body in (
        (optim.register_optimizer_step_pre_hook, loop.before_step),
        (optim.register_optimizer_step_post_hook, loop.after_step),
    ):
        hook = torch.compiler.disable(functools.partial(tap.safely, body))
        tap.also(register(hook).remove)


def _around_backward(tap: Tap, explicit: str) -> Callable[[Any], Any]:
    """For `backward(roots, gradient, …)`; `explicit` is what the second argument is called."""
    torch = sys.modules["torch"]
    loop, safely = tap.loop, torch.compiler.disable(tap.safely)

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            thread = loop.thread
            if thread.in_backward or in_graph():
                return original(*args, **kwargs)
            thread.in_backward = True
            try:
                given = args[1] if len(args) > 1 else kwargs.get(explicit)
                if args and given is None:
                    roots = [args[0]] if isinstance(args[0], torch.Tensor) else list(args[0])
                    safely(loop.on_backward, roots)
                return original(*args, **kwargs)
            finally:
                thread.in_backward = False
                safely(loop.after_backward)

        return uncompiled(backward)

    return make


def _around_norm(tap: Tap) -> Callable[[Any], Any]:
    """For `_get_total_norm(gradients, norm_type, …)`, or older `clip_grad_norm_(parameters, …)`."""
    torch = sys.modules["torch"]

    def remember(named: str, tensors: list[Any], norm_type: Any, norm: Any) -> None:
        if named == "clip_grad_norm_":
            tensors = [each.grad for each in tensors if each.grad is not None]
        if float(norm_type) == 2.0:
            tap.loop.norm.clipped(tensors, norm)

    def make(original: Any) -> Any:
        at = 1 if original.__name__ == "_get_total_norm" else 2

        @functools.wraps(original)
        def total_norm(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(tensors, *args, **kwargs)
            tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            norm = original(tensors, *args, **kwargs)
            given = args[at - 1] if len(args) >= at else kwargs.get("norm_type", 2.0)
            tap.safely(remember, original.__name__, tensors, given, norm)
            return norm

        return total_norm

    return make
