"""Plain PyTorch: what any training loop does, whatever is built on top of it.

Taps: `Tensor.backward` and `autograd.backward` for the raw loss; the norm that `clip_grad_norm_`
computes; the global hooks around `Optimizer.step`; and `Optimizer.zero_grad`, by which gradients
that no step was taken with are thrown away, and the losses they were of with them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

from sentinel.client.capture.loop import in_backward_pass
from sentinel.client.capture.patcher import Patcher, exclude_from_compile

FRAMEWORK = "torch"


def attach(patcher: Patcher) -> None:
    """Put the taps in."""
    torch = sys.modules["torch"]
    from torch.nn.utils import clip_grad  # noqa: PLC0415 - only ever inside a trainer that has it
    from torch.optim import optimizer as optim  # noqa: PLC0415

    loop = patcher.loop
    patcher.replace(torch.Tensor, "backward", _wrap_backward(patcher, "gradient"))
    patcher.replace(torch.autograd, "backward", _wrap_backward(patcher, "grad_tensors"))
    patcher.replace(optim.Optimizer, "zero_grad", _wrap_zero_grad(patcher))
    # The second is the same under another name, for those who clip in two steps.
    norms = ((clip_grad, "_get_total_norm"), (torch.nn.utils, "get_total_norm"))
    if not hasattr(clip_grad, "_get_total_norm"):
        # Of PyTorch before 2.6; people call it by either name.
        norms = ((clip_grad, "clip_grad_norm_"), (torch.nn.utils, "clip_grad_norm_"))
    for owner, name in norms:
        if hasattr(owner, name):
            patcher.replace(owner, name, _wrap_total_norm(patcher))
    for register, body in (
        (optim.register_optimizer_step_pre_hook, loop.before_step),
        (optim.register_optimizer_step_post_hook, loop.after_step),
    ):
        hook = torch.compiler.disable(functools.partial(patcher.call_safely, body))
        patcher.add_cleanup(register(hook).remove)


def _wrap_backward(patcher: Patcher, gradient_argument: str) -> Callable[[Any], Any]:
    """For `backward(roots, gradient, …)`; `explicit` is what the second argument is called."""
    torch = sys.modules["torch"]
    loop, safely = patcher.loop, torch.compiler.disable(patcher.call_safely)

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            thread = loop.thread_state
            if thread.in_backward or in_backward_pass():
                return original(*args, **kwargs)
            thread.in_backward = True
            try:
                args, kwargs, roots = _materialize_tensors(args, kwargs, "tensors")
                given = args[1] if len(args) > 1 else kwargs.get(gradient_argument)
                if roots and given is None:
                    safely(loop.before_backward, roots)
                return original(*args, **kwargs)
            except BaseException:
                safely(loop.loss.undo_pass)
                raise
            finally:
                thread.in_backward = False
                safely(loop.after_backward)

        return exclude_from_compile(backward)

    return make


def _wrap_total_norm(patcher: Patcher) -> Callable[[Any], Any]:
    """For `_get_total_norm(gradients, norm_type, …)`, or older `clip_grad_norm_(parameters, …)`."""
    torch = sys.modules["torch"]

    def remember(named: str, tensors: list[Any], norm_type: Any, norm: Any) -> None:
        if named == "clip_grad_norm_":
            tensors = [each.grad for each in tensors if each.grad is not None]
        if float(norm_type) == 2.0:
            patcher.loop.grad_norm.add_clip(tensors, norm)

    def make(original: Any) -> Any:
        at = 1 if original.__name__ == "_get_total_norm" else 2

        @functools.wraps(original)
        def total_norm(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            args, kwargs, tensors = _materialize_tensors(args, kwargs, "tensors", "parameters")
            norm = original(*args, **kwargs)
            given = args[at] if len(args) > at else kwargs.get("norm_type", 2.0)
            patcher.call_safely(remember, original.__name__, tensors, given, norm)
            return norm

        return total_norm

    return make


def _wrap_zero_grad(patcher: Patcher) -> Callable[[Any], Any]:
    """For `zero_grad(optimizer, …)`."""
    torch, loop = sys.modules["torch"], patcher.loop

    def thrown_away(optimizer: Any, *_: Any, **__: Any) -> None:
        # What others, such as a critic's, throw away is no part of the step that is counted.
        loop.loss.finished = loop.loss.finished or loop.primary_ref() in (None, optimizer)

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def zero_grad(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                patcher.call_safely(thrown_away, *args, **kwargs)
            return original(*args, **kwargs)

        return zero_grad

    return make


def _materialize_tensors(args: Any, kwargs: Any, *names: str) -> tuple[Any, Any, list[Any]]:
    """Arguments as they can be passed on, and the tensors that the first one holds.

    It may be given by one of `names`, and may be such as can be walked only once: then what is
    passed on is a list of it. What PyTorch would not take is left for PyTorch to refuse.
    """
    name = next((name for name in names if name in kwargs), None)
    if not args and name is None:
        return args, kwargs, []
    given = args[0] if args else kwargs[name]
    if isinstance(given, sys.modules["torch"].Tensor):
        return args, kwargs, [given]
    if hasattr(given, "__torch_function__") or not isinstance(given, Iterable):
        return args, kwargs, []
    tensors = list(given)
    if isinstance(given, (list, tuple)):
        return args, kwargs, tensors
    if args:
        return (tensors, *args[1:]), kwargs, tensors
    return args, {**kwargs, name: tensors}, tensors
