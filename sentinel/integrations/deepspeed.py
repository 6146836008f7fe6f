"""DeepSpeed: its engine steps the optimizer, and computes the norm of sharded gradients.

Patches `backward` and `scale` for the loss before scaling, as its share of the step's loss; the
engine's step, at the end of gradient accumulation only; the module's `clip_grad_norm_`, if ZeRO is
off; `save_checkpoint`; and the events that the engine writes to its monitors. Only values that the
engine has already computed are read: no gather, no collective.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.client.capture.loop import OTHER_STEPS_MARGIN
from sentinel.client.capture.loss import RAW_LOSS_ATTRIBUTE
from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.phases import PhaseRecorder
from sentinel.client.capture.scalars import RejectedValueError
from sentinel.client.capture.tracker import ignore_trackers_during
from sentinel.model.record import Event

if TYPE_CHECKING:
    from sentinel.client.capture.gradient_flow import GradientFlow

FRAMEWORK = "deepspeed.runtime.engine"
DIVIDED_WEIGHTS_STAGE = 3
"""The stage of ZeRO from which on each rank holds a part of the weights."""


def attach(patcher: Patcher) -> None:
    """Install the patches."""
    module = sys.modules[FRAMEWORK]
    engine, observer = module.DeepSpeedEngine, DeepSpeedObserver(patcher)
    patcher.replace(engine, "backward", _wrap_backward(patcher, observer))
    patcher.wrap(engine, "scale", after=observer.on_scale)
    # Some wrappers step their optimizer as a check while they are created.
    patcher.wrap(
        engine,
        "_do_optimizer_sanity_check",
        before=lambda _, inner: observer.ignore_inner_optimizer(inner),
    )
    patcher.wrap(
        engine, "__init__", after=lambda _, created, *__, **___: observer.register_engine(created)
    )
    # Pipeline engines do not call `step`.
    step = "_take_model_step" if hasattr(engine, "_take_model_step") else "step"
    patcher.wrap(engine, step, before=observer.before_step, after=observer.after_step)
    patcher.wrap(module, "clip_grad_norm_", after=observer.on_clip)
    patcher.replace(engine, "save_checkpoint", PhaseRecorder(patcher).wrapper_for("save"))
    patcher.wrap(engine, "save_checkpoint", after=observer.on_save)
    monitor = sys.modules.get("deepspeed.monitor.monitor")
    if monitor is None:
        patcher.add_missing("MonitorMaster")
    else:
        ignore_trackers_during(patcher, monitor.MonitorMaster, "write_events")
        patcher.wrap(monitor.MonitorMaster, "write_events", before=observer.on_monitor_events)


@dataclass
class DeepSpeedObserver:
    """The engines of this process, and the step that one of them is taking."""

    patcher: Patcher
    parameter_counts: weakref.WeakKeyDictionary[Any, int] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    """Number of trained parameters by engine."""
    backward_passes: int = 0
    """Backward passes since the last step whose loss went through the engine."""
    step_values: dict[str, Any] = field(default_factory=dict)
    steps_before: int = 0
    """The engine's step count before the current step."""
    other_engine_steps: int = 0
    """Steps of other engines since the last step of the primary engine."""

    def register_engine(self, engine: Any) -> None:
        """Register an engine if it is new; its inner optimizers are not observed themselves."""
        if engine in self.parameter_counts:
            return
        inner = _own_attribute(engine, "basic_optimizer")
        if inner is None:
            # An engine without an optimizer, such as of a frozen reference model.
            self.parameter_counts[engine] = 0
            return
        trained = [p for p in engine.module.parameters() if p.requires_grad]
        self.parameter_counts[engine] = sum(getattr(p, "ds_numel", p.numel()) for p in trained)
        self.ignore_inner_optimizer(inner)
        self.patcher.loop.trained.set_parameters(engine.optimizer, trained)
        if (_own_attribute(engine, "local_rank") or 0) <= 0:
            self.patcher.recorder.record_event(Event.METADATA, None, _engine_config(engine))

    def ignore_inner_optimizer(self, inner: Any) -> None:
        """Exclude an engine's inner optimizer, unless this integration is disabled."""
        loop, inner_ref = self.patcher.loop, weakref.ref(inner)
        loop.exclude_optimizers([])
        loop.engine_optimizers.append(lambda: None if self.patcher.disabled else inner_ref())

    def loss_contribution(self, engine: Any, loss: Any, is_divided: bool) -> Any:
        """The share of a loss in its step's loss; the engine divides loss and gradients alike."""
        self.register_engine(engine)
        if not self._is_primary(engine):
            # The loss of another model, such as a critic, whose steps are not recorded.
            return 0.0
        self.backward_passes += 1
        return loss.detach() / engine.gradient_accumulation_steps() if is_divided else loss.detach()

    def on_scale(self, scaled: Any, engine: Any, loss: Any) -> None:
        """Called for a loss whose backward pass the trainer starts itself."""
        setattr(scaled, RAW_LOSS_ATTRIBUTE, self.loss_contribution(engine, loss, is_divided=True))

    def before_step(self, engine: Any, *_: Any, **__: Any) -> None:
        """Called before a possible step; reads the values that the step changes or frees."""
        self.register_engine(engine)
        self.steps_before = engine.global_steps
        self.step_values = {"learning_rate": next(iter(engine.get_lr()), None)}
        if self._has_plain_gradients(engine) and not engine.gradient_clipping():
            self.step_values |= self._measure_grad_norm(engine.optimizer)
        flow = self._gradient_flow(engine)
        if flow is not None:
            flow.before_step(engine.optimizer, has_closure=False)

    def on_clip(self, norm: Any, *args: Any, **kwargs: Any) -> None:
        """Called with the norm of unsharded gradients, by which the engine's module clips."""
        if (args[2] if len(args) > 2 else kwargs.get("norm_type", 2)) == 2:
            self.step_values["grad_norm"] = norm

    def after_step(self, _: Any, engine: Any, *__: Any, **___: Any) -> None:
        """Called after a step or an accumulation; a skipped step counts as a step."""
        loop, values = self.patcher.loop, self.step_values
        passes, self.step_values = self.backward_passes, {}
        if engine.global_steps == self.steps_before:
            return
        loop.grad_norm.clips.clear()
        flow = self._gradient_flow(engine)
        if flow is not None:
            flow.after_step(engine.optimizer)
        self.other_engine_steps = 0 if self._is_primary(engine) else self.other_engine_steps + 1
        accepted = not self.other_engine_steps or self.other_engine_steps > OTHER_STEPS_MARGIN
        if not (accepted and loop.completes_step(engine.optimizer, self.parameter_counts[engine])):
            # Its losses were excluded, so the current sum stays valid.
            self.patcher.recorder.record_uncounted_step()
            return
        self.backward_passes = 0
        if loop.checks is not None and engine.zero_optimization_stage() < DIVIDED_WEIGHTS_STAGE:
            ranks = _ranks_of_replicas(engine)
            loop.checks.after_engine_step(engine.optimizer, engine.module, ranks, loop.step_time)
        norm = _own_attribute(engine, "_global_grad_norm")
        if norm is not None:
            values["grad_norm"] = _nan_if_negative(norm)
        if not passes and loop.loss.total is not None:
            # The trainer called `loss.backward()`, so the engine divides only the gradients.
            loop.loss.total = loop.loss.total / engine.gradient_accumulation_steps()
        values |= _loss_scale_values(engine)
        if self.patcher.recorder.clock.set_engine_step(engine.global_steps):
            values["global_step"] = float(engine.global_steps)
        loop.complete_step(values)

    def on_save(
        self, _: Any, engine: Any, save_dir: Any, tag: Any = None, *__: Any, **___: Any
    ) -> None:
        """Called when a checkpoint is complete."""
        tag = f"global_step{engine.global_steps}" if tag is None else str(tag)
        step = None if self.patcher.recorder.clock.has_trainer_step else engine.global_steps
        self.patcher.recorder.record_event(
            Event.SAVE, step, {"path": str(Path(save_dir).absolute() / tag)}
        )

    def on_monitor_events(self, _: Any, events: Any) -> None:
        """Called with monitor events, which count samples instead of steps."""
        self.patcher.recorder.log_from_framework({name: value for name, value, *_ in events})

    def _gradient_flow(self, engine: Any) -> GradientFlow | None:
        """What measures the layers of the engine, if its gradients can be read."""
        loop = self.patcher.loop
        is_counted = loop.primary_ref() is engine.optimizer
        return loop.gradient_flow if is_counted and self._has_plain_gradients(engine) else None

    def _is_primary(self, engine: Any) -> bool:
        """Whether that engine's steps are the run's steps."""
        primary = self.patcher.loop.primary_ref()
        for other in self.parameter_counts:
            if other.optimizer is primary:
                return bool(other is engine)
        return engine is max(self.parameter_counts, key=self.parameter_counts.__getitem__)

    def _has_plain_gradients(self, engine: Any) -> bool:
        """Whether gradients are in `Parameter.grad`, unsharded and unscaled."""
        wrapped = engine.zero_optimization() or engine.fp16_enabled() or engine.bfloat16_enabled()
        return not wrapped and _own_attribute(engine, "torch_autocast_z0_gradscaler") is None

    def _measure_grad_norm(self, optimizer: Any) -> dict[str, Any]:
        loop = self.patcher.loop
        try:
            return (
                loop.grad_norm.measure(optimizer) if loop.grad_norm.is_due(loop.step_time) else {}
            )
        except RejectedValueError as refusal:
            self.patcher.recorder.ring.count_drop(refusal.reason)
            return {}


def _wrap_backward(patcher: Patcher, observer: DeepSpeedObserver) -> Callable[[Any], Any]:
    """A wrapper for `backward(loss, retain_graph, scale_wrt_gas)`."""
    thread = patcher.loop.thread_state

    def set_explicit_loss(engine: Any, loss: Any, *args: Any, **kwargs: Any) -> None:
        is_divided = args[1] if len(args) > 1 else kwargs.get("scale_wrt_gas", True)
        thread.explicit_loss = observer.loss_contribution(engine, loss, is_divided)

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            patcher.call_safely(functools.partial(set_explicit_loss, **kwargs), *args)
            try:
                return original(*args, **kwargs)
            finally:
                thread.explicit_loss = None

        return backward

    return make


def _own_attribute(engine: Any, name: str) -> Any:
    """An attribute of the engine itself; `getattr` would also look in its model."""
    return vars(engine).get(name)


def _ranks_of_replicas(engine: Any) -> Sequence[int]:
    """The ranks that hold the weights of the engine as this one does; empty if it is alone."""
    group = _own_attribute(engine, "seq_data_parallel_group")
    ranks = () if group is None else sys.modules["torch.distributed"].get_process_group_ranks(group)
    return ranks if len(ranks) > 1 else ()


def _nan_if_negative(norm: Any) -> Any:
    """The norm; older versions of DeepSpeed report -1 if it is not finite."""
    if isinstance(norm, (int, float)):
        return nan if norm < 0 else float(norm)
    return norm.masked_fill(norm < 0, nan)


def _loss_scale_values(engine: Any) -> dict[str, Any]:
    if not engine.fp16_enabled():
        # ZeRO also skips steps in fp32, if a gradient is not finite.
        return {"skipped_steps": engine.skipped_steps} if engine.skipped_steps else {}
    scale = getattr(engine.optimizer, "cur_scale", None)
    if scale is None:
        scale = getattr(getattr(engine.optimizer, "loss_scale_config", None), "cur_scale", None)
    return {"loss_scale": scale, "skipped_steps": engine.skipped_steps}


def _engine_config(engine: Any) -> dict[str, Any]:
    version = str(sys.modules["deepspeed"].__version__)
    # Under Accelerate and the trainers built on it, those report the framework.
    is_outermost = "accelerate.accelerator" not in sys.modules
    framework = {"framework": "deepspeed", "framework_version": version} if is_outermost else {}
    dtype = "bf16" if engine.bfloat16_enabled() else "fp32"
    return {
        **framework,
        "deepspeed": version,
        "zero_stage": int(engine.zero_optimization_stage()),
        "dtype": "fp16" if engine.fp16_enabled() else dtype,
        "train_batch_size": engine.train_batch_size(),
        "train_micro_batch_size_per_gpu": engine.train_micro_batch_size_per_gpu(),
        "gradient_accumulation_steps": engine.gradient_accumulation_steps(),
        "gradient_clipping": engine.gradient_clipping(),
        "optimizer": type(_own_attribute(engine, "basic_optimizer")).__name__,
    }
