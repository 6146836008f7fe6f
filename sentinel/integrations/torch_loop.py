"""Plain PyTorch: what any training loop does, whatever is built on top of it.

Taps, all at class level and all taken out when the run ends: `Tensor.backward` and
`autograd.backward` for the raw loss; `GradScaler.scale` for the loss before scaling; the norm that
`clip_grad_norm_` computes; and the global hooks around `Optimizer.step`. The loss of a step is the
sum of the roots of its backward passes, which is what its gradient is of. The optimizer with the
most parameters closes the step.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from sentinel.hook.grad_norm import GradNorm
from sentinel.hook.patches import Patches
from sentinel.hook.recorder import Recorder
from sentinel.hook.root_loss import RAW, RootLoss
from sentinel.hook.scalars import Refused, number

FRAMEWORK = "torch"
PATIENCE = 16
"""Steps of other optimizers, beyond twice what was usual, after which the largest is given up."""


class Thread(threading.local):
    """What the calling thread is in the middle of."""

    in_backward = False
    stepping: tuple[int, ...] = ()
    """Optimizers whose step is under way, the outermost first."""


@dataclass
class TorchLoop:
    """Watches backward passes and optimizer steps, and tells the recorder of each step."""

    recorder: Recorder
    loss: RootLoss = field(default_factory=RootLoss)
    norm: GradNorm = field(default_factory=GradNorm)
    thread: Thread = field(default_factory=Thread)
    primary: Callable[[], Any] = lambda: None
    size: int = -1
    others: int = 0
    usual: int = 0
    """Steps of others since the last of the primary, and the most there ever were between two."""
    fused: Callable[[], Any] = lambda: None
    """The optimizer that stepped inside the backward pass under way, if any."""
    found: dict[str, Any] = field(default_factory=dict)
    stepped_at: float | None = None
    step_time: float = 0.0

    def safely(self, tap: Callable[..., None], *args: Any) -> None:
        """Run a tap; what goes wrong in it is ours alone."""
        guard = self.recorder.gate.guard
        if guard.off:
            return
        try:
            tap(*args)
        except Exception as error:
            guard.caught(error)

    def on_backward(self, roots: list[Any]) -> None:
        """A backward pass from these roots begins."""
        self.recorder.begins()
        # Inside a step it is a closure's, which may be asked again and again: the last one stands.
        self.loss.over = self.loss.over or bool(self.thread.stepping)
        self.loss.add(roots)

    def after_backward(self) -> None:
        """A backward pass ended; where optimizers step inside it, that was the step."""
        optimizer = self.fused()
        if optimizer is not None:
            self.fused = lambda: None
            self._step(optimizer)

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer step begins."""
        if _in_graph():
            self.fused = weakref.ref(optimizer)
            return
        # A step that raised never came to its end: whoever steps again was not nested in itself.
        self.thread.stepping = (*_before(self.thread.stepping, id(optimizer)), id(optimizer))
        if len(self.thread.stepping) == 1 and not _closure(args, kwargs):
            self._measure(optimizer)

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer step ended."""
        if id(optimizer) not in self.thread.stepping:
            return
        self.thread.stepping = _before(self.thread.stepping, id(optimizer))
        if self.thread.stepping:
            return
        if self._closes(optimizer):
            # Before a closure has run there is no gradient of this step.
            if _closure(args, kwargs):
                self._measure(optimizer)
            self._step(optimizer)
        else:
            self.loss.over = True
            self.recorder.moved()

    def _closes(self, optimizer: Any) -> bool:
        """Whether that optimizer's step is the one that is counted."""
        primary = self.primary()
        if primary is optimizer:
            self.usual, self.others = max(self.usual, self.others), 0
            return True
        self.others += 1
        size = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        gone = primary is None or _first(primary) is _first(optimizer)
        gone = gone or self.others > 2 * self.usual + PATIENCE
        if gone or size > self.size:
            self.primary, self.size, self.others = weakref.ref(optimizer), size, 0
        # A larger one, seen late, begins with its next step: this one was counted already.
        return gone

    def _measure(self, optimizer: Any) -> None:
        if self.primary() not in {None, optimizer}:
            return
        self.found = {}
        try:
            norm = self.norm.of_clips(optimizer)
            if norm is not None:
                self.found["grad_norm"] = norm
            elif self.norm.due(self.step_time):
                name, norm = self.norm.measure(optimizer)
                self.found[name] = norm
        except Refused:
            return

    def _step(self, optimizer: Any) -> None:
        now = perf_counter()
        found, self.found = self.found, {}
        found["loss"] = self.loss.take()
        found["learning_rate"] = optimizer.param_groups[0].get("lr")
        if self.stepped_at is not None:
            found["step_time"] = self.step_time = now - self.stepped_at
        self.stepped_at = now
        self.recorder.stepped(*_told_apart(found))


def attach(recorder: Recorder) -> Callable[[], None]:
    """Put the taps in; the result takes them out again."""
    torch = sys.modules["torch"]
    from torch.nn.utils import clip_grad  # noqa: PLC0415 - only ever inside a trainer that has it
    from torch.optim import optimizer as optim  # noqa: PLC0415

    loop, taps = TorchLoop(recorder), Patches()
    taps.replace(torch.Tensor, "backward", _around_backward(loop, "gradient"))
    taps.replace(torch.autograd, "backward", _around_backward(loop, "grad_tensors"))
    taps.replace(torch.amp.GradScaler, "scale", _around_scale(loop))
    name = "_get_total_norm" if hasattr(clip_grad, "_get_total_norm") else "clip_grad_norm_"
    taps.replace(clip_grad, name, _around_norm(loop))
    for register, tap in (
        (optim.register_optimizer_step_pre_hook, loop.before_step),
        (optim.register_optimizer_step_post_hook, loop.after_step),
    ):
        hook = torch.compiler.disable(functools.partial(loop.safely, tap))
        taps.also(register(hook).remove)
    return taps.undo


def _around_backward(loop: TorchLoop, explicit: str) -> Callable[[Any], Any]:
    """For `backward(roots, gradient, …)`; `explicit` is what the second argument is called."""
    torch = sys.modules["torch"]
    safely = torch.compiler.disable(loop.safely)

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            thread = loop.thread
            if thread.in_backward or _in_graph():
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

        # Only this frame is kept from the compiler: what runs inside is compiled as ever.
        return torch.compiler.disable(backward, recursive=False)

    return make


def _around_scale(loop: TorchLoop) -> Callable[[Any], Any]:
    torch = sys.modules["torch"]

    def remember(loss: Any, scaled: Any) -> None:
        if isinstance(loss, torch.Tensor) and isinstance(scaled, torch.Tensor):
            loop.loss.scaled = True
            setattr(scaled, RAW, loss.detach())

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def scale(self: Any, outputs: Any) -> Any:
            scaled = original(self, outputs)
            if not torch.compiler.is_compiling():
                loop.safely(remember, outputs, scaled)
            return scaled

        return scale

    return make


def _around_norm(loop: TorchLoop) -> Callable[[Any], Any]:
    """For `_get_total_norm(gradients, norm_type, …)`, or older `clip_grad_norm_(parameters, …)`."""
    torch = sys.modules["torch"]

    def remember(named: str, tensors: list[Any], norm_type: Any, norm: Any) -> None:
        if named == "clip_grad_norm_":
            tensors = [each.grad for each in tensors if each.grad is not None]
        if float(norm_type) == 2.0:
            loop.norm.clipped(tensors, norm)

    def make(original: Any) -> Any:
        at = 1 if original.__name__ == "_get_total_norm" else 2

        @functools.wraps(original)
        def total_norm(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(tensors, *args, **kwargs)
            tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            norm = original(tensors, *args, **kwargs)
            given = args[at - 1] if len(args) >= at else kwargs.get("norm_type", 2.0)
            loop.safely(remember, original.__name__, tensors, given, norm)
            return norm

        return total_norm

    return make


def _told_apart(found: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """What was captured: numbers, and tensors still on a device."""
    values: dict[str, float] = {}
    tensors: dict[str, Any] = {}
    for name, value in found.items():
        try:
            read = number(value)
        except Refused:
            continue
        (values if type(read) is float else tensors)[name] = read
    return values, tensors


def _in_graph() -> bool:
    """Whether this runs inside a backward pass: reentrant checkpoints, optimizers in backward."""
    return bool(sys.modules["torch"]._C._current_graph_task_id() != -1)  # noqa: SLF001


def _closure(args: Any, kwargs: Any) -> Any:
    return kwargs.get("closure") or (args[1] if len(args) > 1 else None)


def _first(optimizer: Any) -> Any:
    return next((p for group in optimizer.param_groups for p in group["params"]), optimizer)


def _before(under_way: tuple[int, ...], optimizer: int) -> tuple[int, ...]:
    return under_way[: under_way.index(optimizer)] if optimizer in under_way else under_way
