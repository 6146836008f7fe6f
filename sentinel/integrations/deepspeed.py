"""DeepSpeed: its engine steps by itself, and knows the norm of gradients that no rank holds whole.

Taps: `backward` and `scale` for the loss before any scaling, as one share of its step's; the step
of the engine, at the end of gradient accumulation only; what `clip_grad_norm_` of the engine's
module finds, where ZeRO is off; `save_checkpoint`; and what the engine tells its monitors. Nothing
is read that the engine has not computed already: no gathering, no collective.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any

from sentinel.client.capture.loop import OTHER_STEPS_MARGIN
from sentinel.client.capture.loss import RAW_LOSS_ATTRIBUTE
from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.phases import PhaseRecorder
from sentinel.client.capture.scalars import RejectedValueError
from sentinel.client.capture.tracker import ignore_trackers_during
from sentinel.model.record import Event

FRAMEWORK = "deepspeed.runtime.engine"


def attach(patcher: Patcher) -> None:
    """Put the taps in."""
    module = sys.modules[FRAMEWORK]
    engine, engines = module.DeepSpeedEngine, DeepSpeedObserver(patcher)
    patcher.replace(engine, "backward", _wrap_backward(patcher, engines))
    patcher.wrap(engine, "scale", after=engines.on_scale)
    # Some wrappers try their optimizer out while they are made.
    patcher.wrap(
        engine,
        "_do_optimizer_sanity_check",
        before=lambda _, inner: engines.ignore_inner_optimizer(inner),
    )
    patcher.wrap(
        engine, "__init__", after=lambda _, made, *__, **___: engines.register_engine(made)
    )
    # Pipelines take their step without `step`.
    step = "_take_model_step" if hasattr(engine, "_take_model_step") else "step"
    patcher.wrap(engine, step, before=engines.before_step, after=engines.after_step)
    patcher.wrap(module, "clip_grad_norm_", after=engines.on_clip)
    patcher.replace(engine, "save_checkpoint", PhaseRecorder(patcher).wrapper_for("save"))
    patcher.wrap(engine, "save_checkpoint", after=engines.on_save)
    monitor = sys.modules.get("deepspeed.monitor.monitor")
    if monitor is None:
        patcher.add_missing("MonitorMaster")
    else:
        ignore_trackers_during(patcher, monitor.MonitorMaster, "write_events")
        patcher.wrap(monitor.MonitorMaster, "write_events", before=engines.on_monitor_events)


@dataclass
class DeepSpeedObserver:
    """The engines of this process, and what is known of the step that one of them is taking."""

    patcher: Patcher
    parameter_counts: weakref.WeakKeyDictionary[Any, int] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    """Every engine met, and how many parameters it trains."""
    backward_passes: int = 0
    """Backward passes since the last step of which the engine was told the loss."""
    step_values: dict[str, Any] = field(default_factory=dict)
    steps_before: int = 0
    """Steps the engine had counted before the one under way."""
    other_engine_steps: int = 0
    """Steps of other engines since the last of the one that leads."""

    def register_engine(self, engine: Any) -> None:
        """An engine that may be new: its optimizers are its own affair."""
        if engine in self.parameter_counts:
            return
        inner = _own_attribute(engine, "basic_optimizer")
        if inner is None:
            # A frozen reference's, say.
            self.parameter_counts[engine] = 0
            return
        trained = [p for p in engine.module.parameters() if p.requires_grad]
        self.parameter_counts[engine] = sum(getattr(p, "ds_numel", p.numel()) for p in trained)
        self.ignore_inner_optimizer(inner)
        if (_own_attribute(engine, "local_rank") or 0) <= 0:
            self.patcher.recorder.record_event(Event.METADATA, None, _engine_config(engine))

    def ignore_inner_optimizer(self, inner: Any) -> None:
        """An optimizer inside an engine: not listened to, unless we are heard no more ourselves."""
        loop, still = self.patcher.loop, weakref.ref(inner)
        loop.exclude_optimizers([])
        loop.engine_optimizers.append(lambda: None if self.patcher.disabled else still())

    def loss_contribution(self, engine: Any, loss: Any, is_divided: bool) -> Any:
        """What a loss adds to its step's: the engine divides it, and the gradients with it."""
        self.register_engine(engine)
        if not self._is_primary(engine):
            # A critic's, say: its step is not the one that is told of.
            return 0.0
        self.backward_passes += 1
        return loss.detach() / engine.gradient_accumulation_steps() if is_divided else loss.detach()

    def on_scale(self, scaled: Any, engine: Any, loss: Any) -> None:
        """A loss whose backward pass the trainer begins itself."""
        setattr(scaled, RAW_LOSS_ATTRIBUTE, self.loss_contribution(engine, loss, is_divided=True))

    def before_step(self, engine: Any, *_: Any, **__: Any) -> None:
        """The engine may take a step: what will be gone, or have moved on, when it has."""
        self.register_engine(engine)
        self.steps_before = engine.global_steps
        self.step_values = {"learning_rate": next(iter(engine.get_lr()), None)}
        if self._has_plain_gradients(engine) and not engine.gradient_clipping():
            self.step_values |= self._measure_grad_norm(engine.optimizer)

    def on_clip(self, norm: Any, *args: Any, **kwargs: Any) -> None:
        """The engine's module clips gradients that every rank has whole, by this norm."""
        if (args[2] if len(args) > 2 else kwargs.get("norm_type", 2)) == 2:
            self.step_values["grad_norm"] = norm

    def after_step(self, _: Any, engine: Any, *__: Any, **___: Any) -> None:
        """The engine took a step, unless it only accumulates; one that it skips counts, too."""
        loop, found = self.patcher.loop, self.step_values
        passes, self.step_values = self.backward_passes, {}
        if engine.global_steps == self.steps_before:
            return
        loop.grad_norm.clips.clear()
        self.other_engine_steps = 0 if self._is_primary(engine) else self.other_engine_steps + 1
        heard = not self.other_engine_steps or self.other_engine_steps > OTHER_STEPS_MARGIN
        if not (heard and loop.completes_step(engine.optimizer, self.parameter_counts[engine])):
            # Its losses were left out already: the sum under way goes on.
            self.patcher.recorder.record_uncounted_step()
            return
        self.backward_passes = 0
        norm = _own_attribute(engine, "_global_grad_norm")
        if norm is not None:
            found["grad_norm"] = _nan_if_negative(norm)
        if not passes and loop.loss.total is not None:
            # The trainer's own `loss.backward()`: the engine divides the gradients alone.
            loop.loss.total = loop.loss.total / engine.gradient_accumulation_steps()
        found |= _loss_scale_values(engine)
        if self.patcher.recorder.clock.set_engine_step(engine.global_steps):
            found["global_step"] = float(engine.global_steps)
        loop.complete_step(found)

    def on_save(
        self, _: Any, engine: Any, save_dir: Any, tag: Any = None, *__: Any, **___: Any
    ) -> None:
        """A checkpoint is complete."""
        tag = f"global_step{engine.global_steps}" if tag is None else str(tag)
        step = None if self.patcher.recorder.clock.has_trainer_step else engine.global_steps
        self.patcher.recorder.record_event(
            Event.SAVE, step, {"path": str(Path(save_dir).absolute() / tag)}
        )

    def on_monitor_events(self, _: Any, events: Any) -> None:
        """What the engine shows: by samples, which are no steps."""
        self.patcher.recorder.log_from_framework({name: value for name, value, *_ in events})

    def _is_primary(self, engine: Any) -> bool:
        """Whether that engine's step is the one that will be told of."""
        primary = self.patcher.loop.primary_ref()
        for other in self.parameter_counts:
            if other.optimizer is primary:
                return bool(other is engine)
        return engine is max(self.parameter_counts, key=self.parameter_counts.__getitem__)

    def _has_plain_gradients(self, engine: Any) -> bool:
        """Whether the gradients are where PyTorch puts them: whole, and not scaled."""
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
    """For `backward(loss, retain_graph, scale_wrt_gas)`."""
    thread = patcher.loop.thread_state

    def tell(engine: Any, loss: Any, *args: Any, **kwargs: Any) -> None:
        divided = args[1] if len(args) > 1 else kwargs.get("scale_wrt_gas", True)
        thread.explicit_loss = observer.loss_contribution(engine, loss, divided)

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            patcher.call_safely(tell, *args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                thread.explicit_loss = None

        return backward

    return make


def _own_attribute(engine: Any, name: str) -> Any:
    """An attribute of the engine itself, which would go on asking its model."""
    return vars(engine).get(name)


def _nan_if_negative(norm: Any) -> Any:
    """Older versions say -1 where the norm is not finite."""
    if isinstance(norm, (int, float)):
        return nan if norm < 0 else float(norm)
    return norm.masked_fill(norm < 0, nan)


def _loss_scale_values(engine: Any) -> dict[str, Any]:
    if not engine.fp16_enabled():
        # ZeRO leaves steps out in fp32 as well, where the gradient is not finite.
        return {"skipped_steps": engine.skipped_steps} if engine.skipped_steps else {}
    scale = getattr(engine.optimizer, "cur_scale", None)
    if scale is None:
        scale = getattr(getattr(engine.optimizer, "loss_scale_config", None), "cur_scale", None)
    return {"loss_scale": scale, "skipped_steps": engine.skipped_steps}


def _engine_config(engine: Any) -> dict[str, Any]:
    version = str(sys.modules["deepspeed"].__version__)
    # Under Accelerate, and the trainers built on it, these say what the framework is.
    alone = "accelerate.accelerator" not in sys.modules
    framework = {"framework": "deepspeed", "framework_version": version} if alone else {}
    half = "bf16" if engine.bfloat16_enabled() else "fp32"
    return {
        **framework,
        "deepspeed": version,
        "zero_stage": int(engine.zero_optimization_stage()),
        "dtype": "fp16" if engine.fp16_enabled() else half,
        "train_batch_size": engine.train_batch_size(),
        "train_micro_batch_size_per_gpu": engine.train_micro_batch_size_per_gpu(),
        "gradient_accumulation_steps": engine.gradient_accumulation_steps(),
        "gradient_clipping": engine.gradient_clipping(),
        "optimizer": type(_own_attribute(engine, "basic_optimizer")).__name__,
    }
