"""PyTorch: loss, gradient norm and optimizer steps of any training loop.

Patches `Tensor.backward` and `autograd.backward` for the raw loss; the norm that `clip_grad_norm_`
computes; and `Optimizer.zero_grad`, which discards gradients without a step, and their losses with
them. Registers global hooks around `Optimizer.step`. `Module.eval` and what `torch.save` and
`torch.load` call are patched as signs of life between steps, `load_state_dict` of modules and
optimizers as resumes.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

from sentinel.client.capture.loop import in_backward_pass
from sentinel.client.capture.patcher import Patcher, exclude_from_compile, exclude_with_calls
from sentinel.client.capture.state_loads import StateLoads

FRAMEWORK = "torch"

_SERIALIZATION_FUNCTIONS = {
    "save": ("_save", "_legacy_save"),
    "load": ("_load", "_legacy_load"),
}
"""Functions of `torch.serialization`, by what they do."""
_SERIALIZATION_WRITERS = ("_open_zipfile_writer_file", "_open_zipfile_writer_buffer")


def attach(patcher: Patcher) -> None:
    """Install the patches."""
    torch = sys.modules["torch"]
    from torch.nn.utils import clip_grad  # noqa: PLC0415 - torch is imported lazily
    from torch.optim import optimizer as optim  # noqa: PLC0415

    loop = patcher.loop
    patcher.replace(torch.Tensor, "backward", _wrap_backward(patcher, "gradient"))
    patcher.replace(torch.autograd, "backward", _wrap_backward(patcher, "grad_tensors"))
    patcher.replace(optim.Optimizer, "zero_grad", _wrap_zero_grad(patcher))
    # The second name is the same function, for callers that clip in two steps.
    norms = ((clip_grad, "_get_total_norm"), (torch.nn.utils, "get_total_norm"))
    if not hasattr(clip_grad, "_get_total_norm"):
        # PyTorch before 2.6, where callers use either name.
        norms = ((clip_grad, "clip_grad_norm_"), (torch.nn.utils, "clip_grad_norm_"))
    for owner, name in norms:
        if hasattr(owner, name):
            patcher.replace(owner, name, _wrap_total_norm(patcher))
    for owner in (clip_grad, torch.nn.utils):
        patcher.replace(owner, "clip_grad_value_", _wrap_clip_value(patcher))
    patcher.replace(torch.nn.Module, "eval", _wrap_eval(patcher))
    patcher.replace(torch.nn.Module, "named_parameters", _wrap_named_parameters(patcher))
    parallel, seen = torch.nn.parallel.DistributedDataParallel, loop.seen_modules
    patcher.wrap(parallel, "__init__", after=lambda _, model, *__, **___: seen.add(model))
    schedulers = torch.optim.lr_scheduler
    kind = getattr(schedulers, "LRScheduler", None) or schedulers._LRScheduler  # noqa: SLF001
    patcher.replace(kind, "step", _wrap_schedule(patcher))
    recomputation = sys.modules["torch.utils.checkpoint"]
    if hasattr(recomputation, "check_backward_validity"):

        def add(inputs: Iterable[Any]) -> None:
            if loop.observing_checks is not None:
                loop.observing_checks.process.recomputed.add(inputs)

        patcher.wrap(recomputation, "check_backward_validity", before=add)
    patcher.replace(torch.autocast, "__init__", _wrap_autocast(patcher))
    _patch_serialization(patcher)
    loads = StateLoads(loop)
    patcher.wrap(optim.Optimizer, "load_state_dict", after=loads.after_optimizer_load)
    patcher.wrap(torch.nn.Module, "load_state_dict", after=loads.after_module_load)
    for register, body in (
        (optim.register_optimizer_step_pre_hook, loop.before_step),
        (optim.register_optimizer_step_post_hook, loop.after_step),
    ):
        hook = exclude_with_calls(functools.partial(patcher.call_safely, body))
        patcher.add_cleanup(register(hook).remove)
    if loop.checks is not None:
        patcher.add_cleanup(loop.checks.close)


def _wrap_eval(patcher: Patcher) -> Callable[[Any], Any]:
    """A wrapper for `eval(module)`, which a compiled `forward` may call to freeze a layer."""
    torch, activity, loop = sys.modules["torch"], patcher.recorder.activity, patcher.loop

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def eval_(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                patcher.call_safely(activity.on_eval, *args)
                if loop.checks is not None:
                    patcher.call_safely(loop.checks.on_eval, *args)
            return original(*args, **kwargs)

        return eval_

    return make


def _wrap_autocast(patcher: Patcher) -> Callable[[Any], Any]:
    """A wrapper for `autocast.__init__(context, device_type, …)`, which compiled code may call."""
    torch, loop = sys.modules["torch"], patcher.loop

    def add(device_type: Any, dtype: Any = None, enabled: Any = True, *_: Any, **__: Any) -> None:
        del dtype
        # A model that makes features without gradients may be on another device than the trained.
        if enabled and loop.checks is not None and torch.is_grad_enabled():
            loop.checks.process.autocast_devices.add(device_type)

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if not torch.compiler.is_compiling():
                patcher.call_safely(functools.partial(add, **kwargs), *args)

        return init

    return make


def _wrap_named_parameters(patcher: Patcher) -> Callable[[Any], Any]:
    """A wrapper for `named_parameters(module, …)`, which `parameters` calls too."""
    torch, seen = sys.modules["torch"], patcher.loop.seen_modules
    references = seen.references

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def named_parameters(self: Any, *args: Any, **kwargs: Any) -> Any:
            if id(self) not in references and not torch.compiler.is_compiling():
                patcher.call_safely(seen.add, self)
            return original(self, *args, **kwargs)

        return named_parameters

    return make


def _wrap_schedule(patcher: Patcher) -> Callable[[Any], Any]:
    """A wrapper for `step(scheduler, …)`."""
    loop = patcher.loop

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            if loop.observing_checks is not None:
                patcher.call_safely(loop.observing_checks.on_schedule, args[0])
            return original(*args, **kwargs)

        return step

    return make


def _patch_serialization(patcher: Patcher) -> None:
    """Patch what `torch.save` and `torch.load` call.

    These two are not patched: a data set may refer to them, and a patched function cannot be
    pickled for the workers of a DataLoader.
    """
    owner, activity = sys.modules["torch.serialization"], patcher.recorder.activity
    for activity_name, names in _SERIALIZATION_FUNCTIONS.items():
        for name in names:
            patcher.replace(owner, name, activity.wrapper_for(activity_name))
    if (checks := patcher.loop.checks) is not None:
        for name in _SERIALIZATION_FUNCTIONS["save"]:
            patcher.wrap(owner, name, before=lambda *_, **__: checks.on_save())
        for name in _SERIALIZATION_FUNCTIONS["load"]:
            patcher.wrap(owner, name, before=lambda *_, **__: checks.process.loads.add_file())
    for name in _SERIALIZATION_WRITERS:
        writer = getattr(owner, name, None)
        if writer is None:
            patcher.add_missing(name)
        else:
            # A file is written to its disk at its end.
            patcher.replace(writer, "__exit__", activity.wrapper_for("save"))


def _wrap_backward(patcher: Patcher, gradient_argument: str) -> Callable[[Any], Any]:
    """A wrapper for `backward(roots, gradient, …)`; the second argument is `gradient_argument`."""
    loop, safely = patcher.loop, exclude_with_calls(patcher.call_safely)

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            thread = loop.thread_state
            if thread.in_backward or in_backward_pass():
                return original(*args, **kwargs)
            thread.in_backward = True
            try:
                args, kwargs, roots = _materialize_tensors(args, kwargs, "tensors")
                gradient = args[1] if len(args) > 1 else kwargs.get(gradient_argument)
                if roots and gradient is None:
                    safely(loop.before_backward, roots)
                else:
                    safely(loop.before_pass_of_gradients)
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
    """A wrapper for `_get_total_norm(gradients, …)`, or older `clip_grad_norm_(parameters, …)`."""
    torch = sys.modules["torch"]

    def remember(name: str, tensors: list[Any], norm_type: Any, norm: Any) -> None:
        if name == "clip_grad_norm_":
            tensors = [parameter.grad for parameter in tensors if parameter.grad is not None]
        if float(norm_type) == 2.0:
            patcher.loop.grad_norm.add_clip(tensors, norm)

    def make(original: Any) -> Any:
        position = 1 if original.__name__ == "_get_total_norm" else 2

        @functools.wraps(original)
        def total_norm(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            args, kwargs, tensors = _materialize_tensors(args, kwargs, "tensors", "parameters")
            if patcher.loop.gradient_flow is not None:
                patcher.call_safely(patcher.loop.before_clip, tensors)
            norm = original(*args, **kwargs)
            norm_type = args[position] if len(args) > position else kwargs.get("norm_type", 2.0)
            patcher.call_safely(remember, original.__name__, tensors, norm_type, norm)
            return norm

        return total_norm

    return make


def _wrap_clip_value(patcher: Patcher) -> Callable[[Any], Any]:
    """A wrapper for `clip_grad_value_(parameters, …)`."""
    torch = sys.modules["torch"]

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def clip_grad_value_(*args: Any, **kwargs: Any) -> Any:
            if patcher.loop.gradient_flow is not None and not torch.compiler.is_compiling():
                args, kwargs, tensors = _materialize_tensors(args, kwargs, "parameters")
                patcher.call_safely(patcher.loop.before_clip, tensors)
            return original(*args, **kwargs)

        return clip_grad_value_

    return make


def _wrap_zero_grad(patcher: Patcher) -> Callable[[Any], Any]:
    """A wrapper for `zero_grad(optimizer, …)`."""
    torch, loop = sys.modules["torch"], patcher.loop

    def on_zero_grad(optimizer: Any, *_: Any) -> None:
        primary = loop.primary_ref()
        if primary is None:
            loop.on_cleared_without_step()
        # Gradients of other optimizers, such as a critic's, do not belong to the counted step.
        loop.loss.finished = loop.loss.finished or primary in (None, optimizer)

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def zero_grad(*args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling():
                patcher.call_safely(on_zero_grad, *args)
            return original(*args, **kwargs)

        return zero_grad

    return make


def _materialize_tensors(args: Any, kwargs: Any, *names: str) -> tuple[Any, Any, list[Any]]:
    """The arguments to pass on, and the tensors in the first one.

    The first argument may be passed by keyword as one of `names`. An iterator is replaced by a
    list, since it can be consumed only once. Invalid arguments are left for PyTorch to reject.
    """
    if args:
        first = args[0]
    else:
        name = next((name for name in names if name in kwargs), "")
        if not name:
            return args, kwargs, []
        first = kwargs[name]
    if isinstance(first, sys.modules["torch"].Tensor):
        return args, kwargs, [first]
    is_plain = type(first) in (list, tuple)
    if not is_plain and (hasattr(first, "__torch_function__") or not isinstance(first, Iterable)):
        return args, kwargs, []
    tensors = list(first)
    if is_plain or isinstance(first, (list, tuple)):
        return args, kwargs, tensors
    if args:
        return (tensors, *args[1:]), kwargs, tensors
    return args, {**kwargs, name: tensors}, tensors
