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

from sentinel.client.capture.loop import PATIENCE
from sentinel.client.capture.loss import RAW
from sentinel.client.capture.patcher import Tap
from sentinel.client.capture.phases import Phases
from sentinel.client.capture.scalars import Refused
from sentinel.client.capture.tracker import repeats
from sentinel.model.record import Event

FRAMEWORK = "deepspeed.runtime.engine"


def attach(tap: Tap) -> None:
    """Put the taps in."""
    module = sys.modules[FRAMEWORK]
    engine, engines = module.DeepSpeedEngine, Engines(tap)
    tap.replace(engine, "backward", _around_backward(tap, engines))
    tap.watch(engine, "scale", after=engines.scaled)
    # Some wrappers try their optimizer out while they are made.
    tap.watch(engine, "_do_optimizer_sanity_check", before=lambda _, inner: engines.owned(inner))
    tap.watch(engine, "__init__", after=lambda _, made, *__, **___: engines.meet(made))
    # Pipelines take their step without `step`.
    step = "_take_model_step" if hasattr(engine, "_take_model_step") else "step"
    tap.watch(engine, step, before=engines.before_step, after=engines.after_step)
    tap.watch(module, "clip_grad_norm_", after=engines.clipped)
    tap.replace(engine, "save_checkpoint", Phases(tap).around("save"))
    tap.watch(engine, "save_checkpoint", after=engines.saved)
    monitor = sys.modules.get("deepspeed.monitor.monitor")
    if monitor is None:
        tap.lacks("MonitorMaster")
    else:
        repeats(tap, monitor.MonitorMaster, "write_events")
        tap.watch(monitor.MonitorMaster, "write_events", before=engines.written)


@dataclass
class Engines:
    """The engines of this process, and what is known of the step that one of them is taking."""

    tap: Tap
    sizes: weakref.WeakKeyDictionary[Any, int] = field(default_factory=weakref.WeakKeyDictionary)
    """Every engine met, and how many parameters it trains."""
    passes: int = 0
    """Backward passes since the last step of which the engine was told the loss."""
    found: dict[str, Any] = field(default_factory=dict)
    before: int = 0
    """Steps the engine had counted before the one under way."""
    waited: int = 0
    """Steps of other engines since the last of the one that leads."""

    def meet(self, engine: Any) -> None:
        """An engine that may be new: its optimizers are its own affair."""
        if engine in self.sizes:
            return
        inner = _own(engine, "basic_optimizer")
        if inner is None:
            # A frozen reference's, say.
            self.sizes[engine] = 0
            return
        trained = [p for p in engine.module.parameters() if p.requires_grad]
        self.sizes[engine] = sum(getattr(p, "ds_numel", p.numel()) for p in trained)
        self.owned(inner)
        if (_own(engine, "local_rank") or 0) <= 0:
            self.tap.recorder.say(Event.FACTS, None, _facts(engine))

    def owned(self, inner: Any) -> None:
        """An optimizer inside an engine: not listened to, unless we are heard no more ourselves."""
        loop, still = self.tap.loop, weakref.ref(inner)
        loop.owned([])
        loop.engines.append(lambda: None if self.tap.off else still())

    def told(self, engine: Any, loss: Any, divided: bool) -> Any:
        """What a loss adds to its step's: the engine divides it, and the gradients with it."""
        self.meet(engine)
        if not self._leads(engine):
            # A critic's, say: its step is not the one that is told of.
            return 0.0
        self.passes += 1
        return loss.detach() / engine.gradient_accumulation_steps() if divided else loss.detach()

    def scaled(self, scaled: Any, engine: Any, loss: Any) -> None:
        """A loss whose backward pass the trainer begins itself."""
        setattr(scaled, RAW, self.told(engine, loss, divided=True))

    def before_step(self, engine: Any, *_: Any, **__: Any) -> None:
        """The engine may take a step: what will be gone, or have moved on, when it has."""
        self.meet(engine)
        self.before = engine.global_steps
        self.found = {"learning_rate": next(iter(engine.get_lr()), None)}
        if self._bare(engine) and not engine.gradient_clipping():
            self.found |= self._measured(engine.optimizer)

    def clipped(self, norm: Any, *args: Any, **kwargs: Any) -> None:
        """The engine's module clips gradients that every rank has whole, by this norm."""
        if (args[2] if len(args) > 2 else kwargs.get("norm_type", 2)) == 2:
            self.found["grad_norm"] = norm

    def after_step(self, _: Any, engine: Any, *__: Any, **___: Any) -> None:
        """The engine took a step, unless it only accumulates; one that it skips counts, too."""
        loop, found = self.tap.loop, self.found
        passes, self.found = self.passes, {}
        if engine.global_steps == self.before:
            return
        loop.norm.clips.clear()
        self.waited = 0 if self._leads(engine) else self.waited + 1
        heard = not self.waited or self.waited > PATIENCE
        if not (heard and loop.closes(engine.optimizer, self.sizes[engine])):
            # Its losses were left out already: the sum under way goes on.
            self.tap.recorder.moved()
            return
        self.passes = 0
        norm = _own(engine, "_global_grad_norm")
        if norm is not None:
            found["grad_norm"] = _norm(norm)
        if not passes and loop.loss.total is not None:
            # The trainer's own `loss.backward()`: the engine divides the gradients alone.
            loop.loss.total = loop.loss.total / engine.gradient_accumulation_steps()
        found |= _scale(engine)
        if self.tap.recorder.clock.counted(engine.global_steps):
            found["global_step"] = float(engine.global_steps)
        loop.step(found)

    def saved(
        self, _: Any, engine: Any, save_dir: Any, tag: Any = None, *__: Any, **___: Any
    ) -> None:
        """A checkpoint is complete."""
        tag = f"global_step{engine.global_steps}" if tag is None else str(tag)
        step = None if self.tap.recorder.clock.named else engine.global_steps
        self.tap.recorder.say(Event.SAVE, step, {"path": str(Path(save_dir).absolute() / tag)})

    def written(self, _: Any, events: Any) -> None:
        """What the engine shows: by samples, which are no steps."""
        self.tap.recorder.hear({name: value for name, value, *_ in events})

    def _leads(self, engine: Any) -> bool:
        """Whether that engine's step is the one that will be told of."""
        primary = self.tap.loop.primary()
        for other in self.sizes:
            if other.optimizer is primary:
                return bool(other is engine)
        return engine is max(self.sizes, key=self.sizes.__getitem__)

    def _bare(self, engine: Any) -> bool:
        """Whether the gradients are where PyTorch puts them: whole, and not scaled."""
        wrapped = engine.zero_optimization() or engine.fp16_enabled() or engine.bfloat16_enabled()
        return not wrapped and _own(engine, "torch_autocast_z0_gradscaler") is None

    def _measured(self, optimizer: Any) -> dict[str, Any]:
        loop = self.tap.loop
        try:
            return loop.norm.measure(optimizer) if loop.norm.due(loop.step_time) else {}
        except Refused as refusal:
            self.tap.recorder.ring.drop(refusal.reason)
            return {}


def _around_backward(tap: Tap, engines: Engines) -> Callable[[Any], Any]:
    """For `backward(loss, retain_graph, scale_wrt_gas)`."""
    thread = tap.loop.thread

    def tell(engine: Any, loss: Any, *args: Any, **kwargs: Any) -> None:
        divided = args[1] if len(args) > 1 else kwargs.get("scale_wrt_gas", True)
        thread.explicit = engines.told(engine, loss, divided)

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            tap.safely(tell, *args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                thread.explicit = None

        return backward

    return make


def _own(engine: Any, name: str) -> Any:
    """An attribute of the engine itself, which would go on asking its model."""
    return vars(engine).get(name)


def _norm(norm: Any) -> Any:
    """Older versions say -1 where the norm is not finite."""
    if isinstance(norm, (int, float)):
        return nan if norm < 0 else float(norm)
    return norm.masked_fill(norm < 0, nan)


def _scale(engine: Any) -> dict[str, Any]:
    if not engine.fp16_enabled():
        # ZeRO leaves steps out in fp32 as well, where the gradient is not finite.
        return {"skipped_steps": engine.skipped_steps} if engine.skipped_steps else {}
    scale = getattr(engine.optimizer, "cur_scale", None)
    if scale is None:
        scale = getattr(getattr(engine.optimizer, "loss_scale_config", None), "cur_scale", None)
    return {"loss_scale": scale, "skipped_steps": engine.skipped_steps}


def _facts(engine: Any) -> dict[str, Any]:
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
        "optimizer": type(_own(engine, "basic_optimizer")).__name__,
    }
