"""Observes the training loop, whichever framework runs it, and records each complete step.

The loss of a step is the sum of the roots of its backward passes: its gradient is of that sum. The
optimizer with the most parameters completes the step. An engine such as DeepSpeed's reports its
steps itself, and the optimizers that it owns are ignored.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any

from sentinel.client.capture.alternation import Alternation
from sentinel.client.capture.device_copy import is_capturing_graph
from sentinel.client.capture.grad_norm import GradNorm
from sentinel.client.capture.group_rates import OPTIMIZERS_KEY, describe_optimizer, highest_rate
from sentinel.client.capture.loss import StepLoss
from sentinel.client.capture.owned_modules import SeenModules
from sentinel.client.capture.scalars import RejectedValueError, split_by_device
from sentinel.client.capture.trained_parameters import TrainedParameters
from sentinel.client.capture.weight_writes import WeightWrites
from sentinel.client.recorder import Recorder
from sentinel.model.record import Event

if TYPE_CHECKING:
    from sentinel.client.capture.drawn_rows import DrawnRows
    from sentinel.client.capture.gradient_flow import GradientFlow
    from sentinel.client.checks.training_checks import TrainingChecks

OTHER_STEPS_MARGIN = 16
"""Steps of others, beyond twice the usual count, after which the primary optimizer is replaced."""

MAX_TURN_STEPS = 128
"""Counted steps after which an optimizer that returns has taken turns with others, as PPO's for its
policy and its value. Longer ones are rather those of trainings, whose steps must not be missed."""

MIN_TRAINING_STEPS = 4
"""Steps that an optimizer takes without the primary's before it can belong to another training."""

MAX_LOSS_KINDS = 64
"""Kinds of loss of a process that are remembered; beyond it, none is new."""

STEPS_PER_RATES, MIN_RATE_RISE = 16, 2.0
"""Steps from one comparison of the rates of parameter groups to the next, and the factor by which
one has risen that is raised in the middle of a training."""

LOSS_KIND_NODES = 3
"""Operations by which a loss is recognized, its last ones: scaling, mean, and the loss itself. With
more, a layer that is frozen or not would make it another."""


class LoopThreadState(threading.local):
    """What the calling thread is executing."""

    in_backward = False
    explicit_loss: Any = None
    """The loss of the next backward pass, where a framework provides it."""
    stepping_optimizers: tuple[int, ...] = ()
    """Ids of the optimizers whose step is in progress, outermost first."""


@dataclass
class TrainingLoop:
    """Collects values from backward passes and optimizer steps, and records each step."""

    recorder: Recorder
    loss: StepLoss = field(default_factory=StepLoss)
    grad_norm: GradNorm = field(default_factory=GradNorm)
    thread_state: LoopThreadState = field(default_factory=LoopThreadState)
    primary_ref: Callable[[], Any] = lambda: None
    primary_size: int = -1
    other_steps: int = 0
    max_other_steps: int = 0
    """Steps of other optimizers since the primary's last step, and the maximum between two."""
    other_counts: dict[int, int] = field(default_factory=dict)
    """The steps of each other optimizer, by its id, since the primary's last step."""
    alternation: Alternation = field(default_factory=Alternation)
    trained: TrainedParameters = field(default_factory=TrainedParameters)
    weight_writes: WeightWrites = field(default_factory=WeightWrites)
    """Those into the weights of the primary optimizer."""
    is_reset: bool = False
    """Whether the weights were set for the optimizer that steps now, which has no state yet."""
    recorded_optimizer: dict[str, Any] = field(default_factory=dict)
    """What was last recorded of a primary optimizer of this training."""
    recorded_rate: float = 0.0
    """The highest rate of a group at that time."""
    is_of_framework: bool = False
    """Whether a framework began the training, whose metadata name all optimizers."""
    is_search: bool = False
    """Whether a framework tries settings, such as a learning rate, before it begins the training
    or continues it: what happens meanwhile is undone, and only shows that the process is alive."""
    left_at: weakref.WeakKeyDictionary[Any, int] = field(default_factory=weakref.WeakKeyDictionary)
    """The counted steps when an optimizer was no longer the primary one."""
    loss_kind: str = ""
    """How the loss of the last backward pass is computed."""
    loss_kinds: set[str] = field(default_factory=set)
    """Those of the steps so far, of all trainings."""
    class_count: int = 0
    """Classes of the loss that were last recorded."""
    first_step_count: int = 0
    """Optimizer steps that were counted when the training began."""
    fused_ref: Callable[[], Any] = lambda: None
    """The optimizer that stepped inside the current backward pass, if any."""
    measured: dict[str, Any] = field(default_factory=dict)
    last_step_at: float | None = None
    step_time: float = 0.0
    own_since: float | None = None
    """End of the last optimizer step or backward pass: from there on no gradient is exchanged."""
    own_seconds: float = 0.0
    """Time of the current step before its backward passes; 0 before the first of them."""
    extra_values: dict[str, Any] = field(default_factory=dict)
    """Further values of the current step, by signal."""
    begun_steps: int = 0
    """Optimizer steps that began, of any optimizer."""
    training_thread_id: int | None = None
    """The thread of the last step."""
    gradient_flow: GradientFlow | None = None
    """Measures the gradient of each layer, if that is on."""
    seen_modules: SeenModules = field(default_factory=SeenModules)
    """Modules whose parameters were asked for, of which one may be the model that is trained."""
    checks: TrainingChecks | None = None
    """Look for errors of the training itself, if that is on."""
    observing_checks: TrainingChecks | None = None
    """The same while they observe the current step."""
    rows: DrawnRows | None = None
    """Notes the rows of each step, if that is on."""
    engine_optimizers: list[Callable[[], Any]] = field(default_factory=list)
    """Weak references to the optimizers that an engine owns."""

    def before_backward(self, roots: list[Any]) -> None:
        """A backward pass from these roots begins."""
        if is_capturing_graph():
            # Every replay of the graph would repeat our computation.
            return
        if self.own_since is not None:
            self.own_seconds += perf_counter() - self.own_since
        self.recorder.begin_backward()
        if self.gradient_flow is not None:
            self.gradient_flow.before_backward()
        if self.observing_checks is not None:
            self.observing_checks.before_backward(roots)
        elif self.checks is not None and not self.begun_steps:
            self.checks.before_first_step(roots)
        # A backward pass inside a step belongs to a closure, which may run again: the last counts.
        thread = self.thread_state
        stepping = thread.stepping_optimizers
        if stepping:
            stepping = thread.stepping_optimizers = _still_stepping(stepping)
            self.loss.finished = self.loss.finished or bool(stepping)
        self.loss_kind = _loss_kind(roots)
        if self.rows is not None:
            self.rows.before_backward(roots if "NllLoss" in self.loss_kind else ())
        if "NllLoss" in self.loss_kind and self.loss_kind not in self.loss_kinds:
            self._record_class_count(roots[0])
        explicit = thread.explicit_loss
        if explicit is not None:
            thread.explicit_loss = None
        self.loss.add(roots if explicit is None else [explicit])

    def before_pass_of_gradients(self) -> None:
        """A backward pass begins from given gradients, as in a stage of a pipeline."""
        if self.observing_checks is not None and not is_capturing_graph():
            self.observing_checks.before_backward(())

    def _record_class_count(self, loss: Any) -> None:
        """Record the number of classes of a new kind of loss: guessing has the loss ln n."""
        count = _class_count(loss)
        if count and count != self.class_count:
            self.class_count = count
            self.recorder.record_event(Event.METADATA, None, {"num_classes": float(count)})

    def after_backward(self) -> None:
        """A backward pass ended; if an optimizer stepped inside it, the step is complete."""
        self.loss.before_pass = None
        if self.observing_checks is not None:
            self.observing_checks.after_backward()
        if self.own_since is not None:
            self.own_since = perf_counter()
        optimizer = self.fused_ref()
        if optimizer is not None:
            self.fused_ref = lambda: None
            self._complete_optimizer_step(optimizer)

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """An optimizer step begins; returns other arguments for it, or None to keep them."""
        self.begun_steps += 1
        if is_capturing_graph() or (
            self.engine_optimizers and any(owned() is optimizer for owned in self.engine_optimizers)
        ):
            return None
        if self.is_search:
            self.on_uncounted_step()
            return None
        if not getattr(optimizer, "state", True) and _is_creating_state():
            return None
        if in_backward_pass():
            self.fused_ref = weakref.ref(optimizer)
            return None
        # Each access to the state of a thread looks up the thread.
        thread = self.thread_state
        stepping = thread.stepping_optimizers
        if stepping:
            stepping = _enclosing_steps(_still_stepping(stepping), id(optimizer))
        thread.stepping_optimizers = (*stepping, id(optimizer))
        if not stepping:
            is_primary = self.primary_ref() is optimizer
            if is_primary:
                self.weight_writes.before_step()
            else:
                self.is_reset = (
                    not getattr(optimizer, "state", True) and self.weight_writes.has_new()
                )
            # Most steps have no argument, and are spared the call.
            has_closure = (kwargs or len(args) > 1) and bool(_closure(args, kwargs))
            if not has_closure:
                self._measure(optimizer)
            if is_primary and (self.gradient_flow or self.observing_checks):
                return self._observe_step(optimizer, args, kwargs, has_closure=has_closure)
        return None

    def _observe_step(
        self, optimizer: Any, args: Any, kwargs: Any, *, has_closure: bool
    ) -> tuple[Any, Any] | None:
        """A step of the primary optimizer begins; with a closure, its passes run inside it."""
        if self.gradient_flow is not None:
            self.gradient_flow.before_step(optimizer, has_closure=has_closure)
        if self.observing_checks is None:
            return None
        if has_closure:
            return _after_closure(args, kwargs, self.observing_checks.before_step)
        self.observing_checks.before_step()
        return None

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer step ended."""
        thread = self.thread_state
        stepping = thread.stepping_optimizers
        if id(optimizer) not in stepping:
            return
        stepping = thread.stepping_optimizers = _enclosing_steps(stepping, id(optimizer))
        if stepping:
            return
        if self.primary_ref() is optimizer:
            if self.gradient_flow is not None:
                self.gradient_flow.after_step(optimizer)
            if self.checks is not None:
                self.observing_checks = self.checks.after_step(self.step_time)
        if self.completes_step(optimizer):
            # Before the closure ran, this step had no gradient.
            if (kwargs or len(args) > 1) and _closure(args, kwargs):
                self._measure(optimizer)
            self.weight_writes.after_step()
            self._complete_optimizer_step(optimizer)
        else:
            self.on_uncounted_step()
        self.is_reset = False

    def before_clip(self, clipped: Sequence[Any] | None = None) -> None:
        """Gradients, by default all, are complete and may be clipped now."""
        if self.gradient_flow is not None and not is_capturing_graph():
            self.gradient_flow.before_clip(self.primary_ref(), clipped)

    def add_seconds(self, signal: str, seconds: float) -> None:
        """Add to the time that the current step spent on `signal`."""
        self.extra_values[signal] = self.extra_values.get(signal, 0.0) + seconds

    def add_values(self, values: Mapping[str, Any]) -> None:
        """Add values to the current step: numbers, or scalars on any device."""
        self.extra_values.update(values)

    def exclude_optimizers(self, optimizers: Iterable[Any]) -> None:
        """Ignore optimizers that an engine steps; it reports steps with `complete_step`."""
        self.engine_optimizers = [owned for owned in self.engine_optimizers if owned() is not None]
        self.engine_optimizers.extend(weakref.ref(optimizer) for optimizer in optimizers)

    def complete_step(self, measured: dict[str, Any]) -> None:
        """Record a complete step with `measured`: numbers, or scalars on any device."""
        now = perf_counter()
        measured = {"loss": self.loss.pop(), **measured, **self.extra_values}
        if self.last_step_at is not None:
            measured["step_time"] = self.step_time = now - self.last_step_at
        if self.own_seconds:
            measured["compute_time"] = max(0.0, self.own_seconds - _waited(self.extra_values))
            self.own_seconds = 0.0
        if self.alternation.is_lasting:
            measured["alternating_optimizers"] = 1.0
        self.extra_values = {}
        if len(self.loss_kinds) < MAX_LOSS_KINDS:
            self.loss_kinds.add(self.loss_kind)
        self.last_step_at = self.own_since = now
        self.training_thread_id = threading.get_ident()
        if self.gradient_flow is not None:
            self.gradient_flow.end_step(self.step_time)
        self.recorder.record_step(*split_by_device(measured))
        if self.rows is not None:
            self.rows.end_step(self.recorder.clock)
        self.recorder.commands.after_optimizer_step(self.recorder.clock)

    def on_uncounted_step(self) -> None:
        """An optimizer step ended that is not counted."""
        self.loss.finished = True
        self.recorder.record_uncounted_step()

    def on_cleared_without_step(self) -> None:
        """Gradients are cleared, and there is no primary optimizer."""
        if (
            self.checks is not None
            and self.loss.has_new_pass
            and not self.begun_steps
            and not self.engine_optimizers
        ):
            self.checks.on_cleared_without_step()

    def completes_step(self, optimizer: Any, size: int | None = None) -> bool:
        """Whether a step of that optimizer completes a training step.

        `size` is its number of parameters, where it does not hold them itself.
        """
        primary = self.primary_ref()
        if primary is optimizer:
            if self.other_steps:
                self.trained.add_noted()
                self.max_other_steps = max(self.max_other_steps, self.other_steps)
                self.other_steps = 0
                self.other_counts.clear()
            self.alternation.add_primary(has_own_pass=self.loss.has_new_pass)
            return True
        self.other_steps += 1
        count = self.other_counts[id(optimizer)] = self.other_counts.get(id(optimizer), 0) + 1
        self.alternation.add_other(has_own_pass=self.loss.has_new_pass)
        has_groups = size is None
        if size is None:
            size = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        self.trained.note(optimizer)
        is_known = self.trained.has_any(optimizer)
        is_left = self.other_steps > 2 * self.max_other_steps + OTHER_STEPS_MARGIN
        first = self.trained.first_parameter(optimizer)
        is_same = primary is not None and self.trained.first_parameter(primary) is first
        is_replaced = is_left or primary is None or is_same
        if is_replaced and not is_known:
            self._add_new_optimizer(optimizer, is_left=is_left and count >= MIN_TRAINING_STEPS)
        elif is_replaced and self.trained.is_of_earlier(optimizer):
            self.trained.add(optimizer)
        elif is_replaced and self._has_new_task(optimizer):
            self._begin_another(optimizer)
            self.trained.add(optimizer)
        # Late in a training, a larger optimizer may be that of another one.
        is_late = self._counted_steps() > OTHER_STEPS_MARGIN and not is_known
        is_larger = size > self.primary_size and not is_late
        if is_replaced or is_larger:
            self._add_turn(primary, optimizer)
            self.weight_writes.watch(list(self.trained.parameters_of(optimizer)))
            self.primary_ref, self.primary_size, self.other_steps = weakref.ref(optimizer), size, 0
            self.other_counts.clear()
            self.alternation = Alternation()
            if has_groups:
                self._record_optimizer(optimizer)
                if self.checks is not None:
                    self.checks.begin(optimizer)
                    self.observing_checks = self.checks
        # A larger optimizer, seen late, counts from its next step: this step was counted already.
        return is_replaced

    def _record_optimizer(self, optimizer: Any) -> None:
        described, self.recorded_rate = describe_optimizer(optimizer), highest_rate(optimizer)
        if self.is_of_framework:
            del described[OPTIMIZERS_KEY]
        if described and described != self.recorded_optimizer:
            self.recorded_optimizer = described
            self.recorder.record_event(Event.METADATA, None, described)

    def _add_turn(self, primary: Any, optimizer: Any) -> None:
        """The optimizer replaces the primary one; it may return after steps of others."""
        steps = self.recorder.clock.optimizer_steps
        absence = steps - self.left_at.pop(optimizer, steps)
        if absence <= MAX_TURN_STEPS:
            self.max_other_steps = max(self.max_other_steps, absence)
        if primary is not None:
            self.left_at[primary] = steps

    def _add_new_optimizer(self, optimizer: Any, *, is_left: bool) -> None:
        """Add the parameters of a replacement; report another training if it is that of one."""
        trained = self.trained
        is_over = is_left or not trained.has_other(optimizer)
        is_over = is_over and trained.first_parameter(optimizer) is not optimizer
        if is_over and self._counted_steps() and not self.recorder.is_resume_declared:
            self._begin_another(optimizer)
        trained.add(optimizer)

    def _begin_another(self, optimizer: Any) -> None:
        """Report another training, which begins with this step of the optimizer."""
        self.trained.begin()
        self.trained.note(optimizer)
        self.max_other_steps, self.last_step_at, self.own_seconds = 0, None, 0.0
        self.recorded_optimizer, self.is_of_framework = {}, False
        self.first_step_count = self.recorder.clock.optimizer_steps
        self.recorder.record_training()

    def _has_new_task(self, optimizer: Any) -> bool:
        """Whether a replacement over known parameters trains the model for something else.

        Its loss is computed as in no step before, as that of DPO after SFT, or a part of the model
        was replaced, as the head for a fine-tuning, or the weights were set and the optimizer is
        new, as for a fold. Otherwise it is of the same training.
        """
        if self._counted_steps() <= OTHER_STEPS_MARGIN or self.recorder.is_resume_declared:
            return False
        # Fewer steps are those of an inner loop, which begins at the weights of the outer one.
        is_fold = self.is_reset and self.weight_writes.steps > OTHER_STEPS_MARGIN
        if is_fold and optimizer not in self.left_at:
            return True
        is_full = len(self.loss_kinds) >= MAX_LOSS_KINDS
        has_new_loss = self.loss_kind not in self.loss_kinds and not is_full
        return has_new_loss or self.trained.is_part_replaced(optimizer)

    def _counted_steps(self) -> int:
        """Steps of the training so far."""
        return self.recorder.clock.optimizer_steps - self.first_step_count

    def begin_training(self, *, is_resumed: bool) -> None:
        """A framework begins a training; if it does not resume one, it is another than the last.

        The last one may have been interrupted anywhere in a step.
        """
        self.primary_ref, self.primary_size = (lambda: None), -1
        self.other_steps = self.max_other_steps = 0
        self.alternation = Alternation()
        self.recorded_optimizer, self.is_of_framework = {}, True
        self.last_step_at, self.extra_values, self.measured = None, {}, {}
        self.own_since, self.own_seconds = None, 0.0
        self.thread_state.explicit_loss, self.loss.finished = None, True
        self.grad_norm.clips.clear()
        self.trained.clear()
        self.left_at.clear()
        self.loss_kinds.clear()
        if self._counted_steps() and not is_resumed:
            self.recorder.record_training()
        self.first_step_count = self.recorder.clock.optimizer_steps

    def _measure(self, optimizer: Any) -> None:
        primary = self.primary_ref()
        if primary is not None and primary is not optimizer:
            return
        self.measured = {}
        try:
            self.measured = self.grad_norm.pop_clipped_norm(optimizer)
            if not self.measured and self.grad_norm.is_due(self.step_time):
                self.measured = self.grad_norm.measure(optimizer)
        except RejectedValueError as rejection:
            self.recorder.ring.count_drop(rejection.reason)

    def _complete_optimizer_step(self, optimizer: Any) -> None:
        measured, self.measured = self.measured, {}
        groups = optimizer.param_groups
        measured["learning_rate"] = groups[0].get("lr")
        if (
            len(groups) > 1
            and self.recorder.clock.optimizer_steps % STEPS_PER_RATES == 0
            and highest_rate(optimizer) >= MIN_RATE_RISE * self.recorded_rate > 0.0
        ):
            self._record_optimizer(optimizer)
        self.complete_step(measured)


def in_backward_pass() -> bool:
    """Whether a backward pass is running: reentrant checkpointing, optimizers in backward."""
    return bool(sys.modules["torch"]._C._current_graph_task_id() != -1)  # noqa: SLF001


def _is_creating_state() -> bool:
    """Whether torch calls a step, at rate 0, that only creates the state of an optimizer.

    It does before it gives or loads the state for a distributed checkpoint.
    """
    module = sys.modules.get("torch.distributed.checkpoint.state_dict")
    if module is None:
        return False
    code = getattr(getattr(module, "_init_optim_state", None), "__code__", None)
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as `inspect` does
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _waited(values: Mapping[str, Any]) -> float:
    """Seconds of a step that are measured by themselves, and are no computing."""
    get = values.get
    seconds: float = (
        get("data_wait", 0.0) + get("generation_time", 0.0) + get("weight_sync_time", 0.0)
    )
    return seconds


def _loss_kind(roots: Sequence[Any]) -> str:
    """The last operations by which the first root of a backward pass is computed."""
    names: list[str] = []
    node = getattr(roots[0], "grad_fn", None) if roots else None
    while node is not None:
        names.append(type(node).__name__)
        if len(names) == LOSS_KIND_NODES:
            break
        # Each access makes new objects.
        inputs = node.next_functions
        node = inputs[0][0] if inputs else None
    return " ".join(names)


def _class_count(loss: Any) -> int:
    """The classes among which a negative log-likelihood chooses; 0 if its graph is released."""
    node = loss.grad_fn
    while "NllLoss" not in type(node).__name__:
        node = node.next_functions[0][0]
    try:
        return int(node._saved_self.shape[1])  # noqa: SLF001 - there is no other way
    except (RuntimeError, IndexError, AttributeError):
        return 0


def _closure(args: Any, kwargs: Any) -> Any:
    """The closure of a step; None without, as where the argument is a loss or a model."""
    argument = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
    is_closure = callable(argument) and not isinstance(argument, sys.modules["torch"].nn.Module)
    return argument if is_closure else None


def _after_closure(args: Any, kwargs: Any, call: Callable[[], None]) -> tuple[Any, Any]:
    """These arguments of a step, with a closure that makes the call after its first run."""
    closure, calls = _closure(args, kwargs), [call]

    # Optimizers may pass arguments to it, and read its attributes.
    @functools.wraps(closure)
    def run(*args: Any, **kwargs: Any) -> Any:
        result = closure(*args, **kwargs)
        if calls:
            calls.pop()()
        return result

    if closure is kwargs.get("closure"):
        return args, {**kwargs, "closure": run}
    return (args[0], run, *args[2:]), kwargs


def _enclosing_steps(stepping: tuple[int, ...], optimizer: int) -> tuple[int, ...]:
    return stepping[: stepping.index(optimizer)] if optimizer in stepping else stepping


def _still_stepping(stepping: tuple[int, ...]) -> tuple[int, ...]:
    """The optimizers whose step is still on the stack; a step that raised is not.

    Only needed where a step is nested in another, or in a closure. PyTorch calls every `step` from
    a wrapper function whose first positional argument is the optimizer.
    """
    on_stack: set[int] = set()
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as `inspect` does
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.optim.optimizer":
            on_stack.update(map(id, frame.f_locals.get("args", ())[:1]))
        frame = frame.f_back
    return tuple(optimizer for optimizer in stepping if optimizer in on_stack)
