"""Loop: what is seen of a training loop, whichever framework runs it, until a step is complete.

The loss of a step is the sum of the roots of its backward passes, which is what its gradient is of.
The optimizer with the most parameters closes the step, unless an engine, such as DeepSpeed's, does:
then the engine says so itself, and the optimizers it owns are not listened to.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from types import FrameType
from typing import Any

from sentinel.client.capture.device_copy import capturing
from sentinel.client.capture.grad_norm import GradNorm
from sentinel.client.capture.loss import RootLoss
from sentinel.client.capture.scalars import Refused, number
from sentinel.client.recorder import Recorder

PATIENCE = 16
"""Steps of other optimizers, beyond twice what was usual, after which the largest is given up."""


class Thread(threading.local):
    """What the calling thread is in the middle of."""

    in_backward = False
    explicit: Any = None
    """The loss that the next backward pass is of, where a framework says so itself."""
    stepping: tuple[int, ...] = ()
    """Optimizers whose step is under way, the outermost first."""


@dataclass
class Loop:
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
    extra: dict[str, Any] = field(default_factory=dict)
    """What else the step under way will tell, by signal: seconds spent, and what `beside` took."""
    begun: int = 0
    """Optimizer steps that began, of whatever optimizer."""
    trains_in: int | None = None
    """The thread that took the last step."""
    engines: list[Callable[[], Any]] = field(default_factory=list)
    """Optimizers that an engine owns."""

    def on_backward(self, roots: list[Any]) -> None:
        """A backward pass from these roots begins."""
        if capturing():
            # What we compute would be computed again by every replay.
            return
        self.recorder.begins()
        # Inside a step it is a closure's, which may be asked again and again: the last one stands.
        self.thread.stepping = _still(self.thread.stepping)
        self.loss.over = self.loss.over or bool(self.thread.stepping)
        explicit, self.thread.explicit = self.thread.explicit, None
        self.loss.add(roots if explicit is None else [explicit])

    def after_backward(self) -> None:
        """A backward pass ended; where optimizers step inside it, that was the step."""
        self.loss.before = None
        optimizer = self.fused()
        if optimizer is not None:
            self.fused = lambda: None
            self._step(optimizer)

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer step begins."""
        self.begun += 1
        if capturing() or any(owned() is optimizer for owned in self.engines):
            return
        if in_graph():
            self.fused = weakref.ref(optimizer)
            return
        under_way = _before(_still(self.thread.stepping), id(optimizer))
        self.thread.stepping = (*under_way, id(optimizer))
        if len(self.thread.stepping) == 1 and not _closure(args, kwargs):
            self._measure(optimizer)

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer step ended."""
        if id(optimizer) not in self.thread.stepping:
            return
        self.thread.stepping = _before(self.thread.stepping, id(optimizer))
        if self.thread.stepping:
            return
        if self.closes(optimizer):
            # Before a closure has run there is no gradient of this step.
            if _closure(args, kwargs):
                self._measure(optimizer)
            self._step(optimizer)
        else:
            self.passed()

    def spent(self, signal: str, seconds: float) -> None:
        """Time of the step under way went into this."""
        self.extra[signal] = self.extra.get(signal, 0.0) + seconds

    def beside(self, found: Mapping[str, Any]) -> None:
        """The step under way will tell this as well: numbers, or scalars on any device."""
        self.extra.update(found)

    def owned(self, optimizers: Iterable[Any]) -> None:
        """An engine steps these itself, and will say when with `step`."""
        self.engines = [owned for owned in self.engines if owned() is not None]
        self.engines.extend(weakref.ref(optimizer) for optimizer in optimizers)

    def step(self, found: dict[str, Any]) -> None:
        """A step is complete; `found` was measured at it: numbers, or scalars on any device."""
        now = perf_counter()
        found = {"loss": self.loss.take(), **found, **self.extra}
        self.extra = {}
        if self.stepped_at is not None:
            found["step_time"] = self.step_time = now - self.stepped_at
        self.stepped_at = now
        self.trains_in = threading.get_ident()
        self.recorder.stepped(*_told_apart(found))
        self.recorder.errands.stepped(self.recorder.clock)

    def passed(self) -> None:
        """A step was taken that is not the one that is counted."""
        self.loss.over = True
        self.recorder.moved()

    def closes(self, optimizer: Any, size: int | None = None) -> bool:
        """Whether that optimizer's step is the one that is counted.

        `size` is its number of parameters, where it does not hold them itself.
        """
        primary = self.primary()
        if primary is optimizer:
            self.usual, self.others = max(self.usual, self.others), 0
            return True
        self.others += 1
        if size is None:
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
            self.found = self.norm.of_clips(optimizer)
            if not self.found and self.norm.due(self.step_time):
                self.found = self.norm.measure(optimizer)
        except Refused as refusal:
            self.recorder.ring.drop(refusal.reason)

    def _step(self, optimizer: Any) -> None:
        found, self.found = self.found, {}
        found["learning_rate"] = optimizer.param_groups[0].get("lr")
        self.step(found)


def begin_anew(loop: Loop) -> None:
    """Another training has another optimizer, however alive the last one's is; and no step yet.

    The last one may have been broken off anywhere in a step.
    """
    loop.primary, loop.size, loop.others, loop.usual = (lambda: None), -1, 0, 0
    loop.stepped_at, loop.extra, loop.found = None, {}, {}
    loop.thread.explicit, loop.loss.over = None, True
    loop.norm.clips.clear()


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


def in_graph() -> bool:
    """Whether this runs inside a backward pass: reentrant checkpoints, optimizers in backward."""
    return bool(sys.modules["torch"]._C._current_graph_task_id() != -1)  # noqa: SLF001


def _closure(args: Any, kwargs: Any) -> Any:
    return kwargs.get("closure") or (args[1] if len(args) > 1 else None)


def _first(optimizer: Any) -> Any:
    return next((p for group in optimizer.param_groups for p in group["params"]), optimizer)


def _before(under_way: tuple[int, ...], optimizer: int) -> tuple[int, ...]:
    return under_way[: under_way.index(optimizer)] if optimizer in under_way else under_way


def _still(stepping: tuple[int, ...]) -> tuple[int, ...]:
    """Those of the optimizers whose step has not ended: one that raised is never heard of again.

    Asked only where one is nested in another, or in a closure. PyTorch calls every `step` from a
    function of its own, which has the optimizer as the first of its `args`.
    """
    if not stepping:
        return stepping
    on_stack: set[int] = set()
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what `inspect` would ask as well
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.optim.optimizer":
            on_stack.update(map(id, frame.f_locals.get("args", ())[:1]))
        frame = frame.f_back
    return tuple(optimizer for optimizer in stepping if optimizer in on_stack)
