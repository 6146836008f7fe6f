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

from sentinel.client.capture.device_copy import is_capturing_graph
from sentinel.client.capture.grad_norm import GradNorm
from sentinel.client.capture.loss import StepLoss
from sentinel.client.capture.scalars import RejectedValueError, read_number
from sentinel.client.recorder import Recorder

OTHER_STEPS_MARGIN = 16
"""Steps of other optimizers, beyond twice what was usual, after which the largest is given up."""


class LoopThreadState(threading.local):
    """What the calling thread is in the middle of."""

    in_backward = False
    explicit_loss: Any = None
    """The loss that the next backward pass is of, where a framework says so itself."""
    stepping_optimizers: tuple[int, ...] = ()
    """Optimizers whose step is under way, the outermost first."""


@dataclass
class TrainingLoop:
    """Watches backward passes and optimizer steps, and tells the recorder of each step."""

    recorder: Recorder
    loss: StepLoss = field(default_factory=StepLoss)
    grad_norm: GradNorm = field(default_factory=GradNorm)
    thread_state: LoopThreadState = field(default_factory=LoopThreadState)
    primary_ref: Callable[[], Any] = lambda: None
    primary_size: int = -1
    other_steps: int = 0
    max_other_steps: int = 0
    """Steps of others since the last of the primary, and the most there ever were between two."""
    fused_ref: Callable[[], Any] = lambda: None
    """The optimizer that stepped inside the backward pass under way, if any."""
    measured: dict[str, Any] = field(default_factory=dict)
    last_step_at: float | None = None
    step_time: float = 0.0
    extra_values: dict[str, Any] = field(default_factory=dict)
    """What else the step under way will tell, by signal: seconds spent, and what `beside` took."""
    begun_steps: int = 0
    """Optimizer steps that began, of whatever optimizer."""
    training_thread_id: int | None = None
    """The thread that took the last step."""
    engine_optimizers: list[Callable[[], Any]] = field(default_factory=list)
    """Optimizers that an engine owns."""

    def before_backward(self, roots: list[Any]) -> None:
        """A backward pass from these roots begins."""
        if is_capturing_graph():
            # What we compute would be computed again by every replay.
            return
        self.recorder.begin_backward()
        # Inside a step it is a closure's, which may be asked again and again: the last one stands.
        self.thread_state.stepping_optimizers = _still_stepping(
            self.thread_state.stepping_optimizers
        )
        self.loss.finished = self.loss.finished or bool(self.thread_state.stepping_optimizers)
        explicit, self.thread_state.explicit_loss = self.thread_state.explicit_loss, None
        self.loss.add(roots if explicit is None else [explicit])

    def after_backward(self) -> None:
        """A backward pass ended; where optimizers step inside it, that was the step."""
        self.loss.before_pass = None
        optimizer = self.fused_ref()
        if optimizer is not None:
            self.fused_ref = lambda: None
            self._complete_optimizer_step(optimizer)

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer step begins."""
        self.begun_steps += 1
        if is_capturing_graph() or any(owned() is optimizer for owned in self.engine_optimizers):
            return
        if in_backward_pass():
            self.fused_ref = weakref.ref(optimizer)
            return
        under_way = _enclosing_steps(
            _still_stepping(self.thread_state.stepping_optimizers), id(optimizer)
        )
        self.thread_state.stepping_optimizers = (*under_way, id(optimizer))
        if len(self.thread_state.stepping_optimizers) == 1 and not _closure(args, kwargs):
            self._measure(optimizer)

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer step ended."""
        if id(optimizer) not in self.thread_state.stepping_optimizers:
            return
        self.thread_state.stepping_optimizers = _enclosing_steps(
            self.thread_state.stepping_optimizers, id(optimizer)
        )
        if self.thread_state.stepping_optimizers:
            return
        if self.completes_step(optimizer):
            # Before a closure has run there is no gradient of this step.
            if _closure(args, kwargs):
                self._measure(optimizer)
            self._complete_optimizer_step(optimizer)
        else:
            self.on_uncounted_step()

    def add_seconds(self, signal: str, seconds: float) -> None:
        """Time of the step under way went into this."""
        self.extra_values[signal] = self.extra_values.get(signal, 0.0) + seconds

    def add_values(self, values: Mapping[str, Any]) -> None:
        """The step under way will tell this as well: numbers, or scalars on any device."""
        self.extra_values.update(values)

    def exclude_optimizers(self, optimizers: Iterable[Any]) -> None:
        """An engine steps these itself, and will say when with `step`."""
        self.engine_optimizers = [owned for owned in self.engine_optimizers if owned() is not None]
        self.engine_optimizers.extend(weakref.ref(optimizer) for optimizer in optimizers)

    def complete_step(self, measured: dict[str, Any]) -> None:
        """A step is complete; `found` was measured at it: numbers, or scalars on any device."""
        now = perf_counter()
        measured = {"loss": self.loss.pop(), **measured, **self.extra_values}
        self.extra_values = {}
        if self.last_step_at is not None:
            measured["step_time"] = self.step_time = now - self.last_step_at
        self.last_step_at = now
        self.training_thread_id = threading.get_ident()
        self.recorder.record_step(*_split_by_device(measured))
        self.recorder.commands.after_optimizer_step(self.recorder.clock)

    def on_uncounted_step(self) -> None:
        """A step was taken that is not the one that is counted."""
        self.loss.finished = True
        self.recorder.record_uncounted_step()

    def completes_step(self, optimizer: Any, size: int | None = None) -> bool:
        """Whether that optimizer's step is the one that is counted.

        `size` is its number of parameters, where it does not hold them itself.
        """
        primary = self.primary_ref()
        if primary is optimizer:
            self.max_other_steps, self.other_steps = max(self.max_other_steps, self.other_steps), 0
            return True
        self.other_steps += 1
        if size is None:
            size = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        gone = primary is None or _first_parameter(primary) is _first_parameter(optimizer)
        gone = gone or self.other_steps > 2 * self.max_other_steps + OTHER_STEPS_MARGIN
        if gone or size > self.primary_size:
            self.primary_ref, self.primary_size, self.other_steps = weakref.ref(optimizer), size, 0
        # A larger one, seen late, begins with its next step: this one was counted already.
        return gone

    def _measure(self, optimizer: Any) -> None:
        if self.primary_ref() not in {None, optimizer}:
            return
        self.measured = {}
        try:
            self.measured = self.grad_norm.pop_clipped_norm(optimizer)
            if not self.measured and self.grad_norm.is_due(self.step_time):
                self.measured = self.grad_norm.measure(optimizer)
        except RejectedValueError as refusal:
            self.recorder.ring.count_drop(refusal.reason)

    def _complete_optimizer_step(self, optimizer: Any) -> None:
        found, self.measured = self.measured, {}
        found["learning_rate"] = optimizer.param_groups[0].get("lr")
        self.complete_step(found)


def reset_loop(loop: TrainingLoop) -> None:
    """Another training has another optimizer, however alive the last one's is; and no step yet.

    The last one may have been broken off anywhere in a step.
    """
    loop.primary_ref, loop.primary_size, loop.other_steps, loop.max_other_steps = (
        (lambda: None),
        -1,
        0,
        0,
    )
    loop.last_step_at, loop.extra_values, loop.measured = None, {}, {}
    loop.thread_state.explicit_loss, loop.loss.finished = None, True
    loop.grad_norm.clips.clear()


def _split_by_device(measured: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """What was captured: numbers, and tensors still on a device."""
    values: dict[str, float] = {}
    tensors: dict[str, Any] = {}
    for name, value in measured.items():
        try:
            read = read_number(value)
        except RejectedValueError:
            continue
        (values if type(read) is float else tensors)[name] = read
    return values, tensors


def in_backward_pass() -> bool:
    """Whether this runs inside a backward pass: reentrant checkpoints, optimizers in backward."""
    return bool(sys.modules["torch"]._C._current_graph_task_id() != -1)  # noqa: SLF001


def _closure(args: Any, kwargs: Any) -> Any:
    return kwargs.get("closure") or (args[1] if len(args) > 1 else None)


def _first_parameter(optimizer: Any) -> Any:
    return next((p for group in optimizer.param_groups for p in group["params"]), optimizer)


def _enclosing_steps(under_way: tuple[int, ...], optimizer: int) -> tuple[int, ...]:
    return under_way[: under_way.index(optimizer)] if optimizer in under_way else under_way


def _still_stepping(stepping: tuple[int, ...]) -> tuple[int, ...]:
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
