"""Lightning: `Trainer`, with automatic or manual optimization, whenever it was created.

Patches `_ResultCollection.update_metrics` and `metrics`, through which values of `self.log` pass
per batch and per epoch; `_LoggerConnector.on_batch_end`, where the number of a step is known;
`_call_callback_hooks`, which calls the trainer's callbacks; the evaluation and prediction loops;
`Trainer.save_checkpoint`; and the searches for a learning rate and for a batch size, which raise it
until the loss diverges or memory is exhausted, and then restore the weights. Nothing is computed,
reduced or read in addition: values on a device are passed on as they are. Commands are executed at
the end of a batch, with `should_stop` and with `save_checkpoint`, which every rank calls at the
same step.

The step is `trainer.global_step`, which counts the steps of all optimizers. Loss, gradient norm and
learning rate are captured by the patches of `torch_loop`.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from sentinel.client.capture.framework_metadata import lightning_metadata
from sentinel.client.capture.loss import RAW_LOSS_ATTRIBUTE
from sentinel.client.capture.patcher import Patcher, exclude_from_compile
from sentinel.client.capture.phases import PhaseRecorder
from sentinel.client.capture.scalars import RejectedValueError, read_number
from sentinel.client.capture.tracker import ignore_trackers_during
from sentinel.model.record import Event

FRAMEWORK = "lightning.pytorch"


def attach(patcher: Patcher) -> None:
    """Install the patches."""
    attach_package(patcher, FRAMEWORK)


def attach_package(patcher: Patcher, package: str) -> None:
    """Install the patches in that package; Lightning has two names."""
    logs = f"{package}.trainer.connectors.logger_connector"
    results = _find_class(patcher, f"{logs}.result", "_ResultCollection")
    connector = _find_class(patcher, f"{logs}.logger_connector", "_LoggerConnector")
    trainer = _find_class(patcher, f"{package}.trainer.trainer", "Trainer")
    call = sys.modules.get(f"{package}.trainer.call")
    observer, phases = LightningObserver(patcher, package), PhaseRecorder(patcher)
    if results is not None:
        patcher.wrap(results, "update_metrics", after=observer.logs.on_update)
        # `self.log` may be called in compiled code, where the patch must not break the graph.
        patcher.replace(results, "update_metrics", exclude_from_compile)
        patcher.wrap(results, "metrics", after=observer.logs.on_compute)
    if connector is not None:
        patcher.wrap(connector, "on_batch_end", before=observer.on_batch_end)
        patcher.wrap(connector, "on_epoch_end", after=observer.on_epoch_end)
        ignore_trackers_during(patcher, connector, "log_metrics")
    if call is not None:
        patcher.wrap(call, "_call_callback_hooks", before=observer.on_callback_hook)
    if trainer is not None:
        patcher.wrap(trainer, "save_checkpoint", after=observer.on_save)
        patcher.replace(trainer, "save_checkpoint", phases.wrapper_for("save"))
    for file, callback, search in (
        ("lr_finder", "LearningRateFinder", "lr_find"),
        ("batch_size_finder", "BatchSizeFinder", "scale_batch_size"),
    ):
        owner = _find_class(patcher, f"{package}.callbacks.{file}", callback)
        if owner is not None:
            patcher.replace(owner, search, observer.wrap_search)
    for file, loop, phase in (
        ("evaluation_loop", "_EvaluationLoop", "eval"),
        ("prediction_loop", "_PredictionLoop", "predict"),
    ):
        owner = _find_class(patcher, f"{package}.loops.{file}", loop)
        if owner is not None:
            patcher.replace(owner, "run", phases.wrapper_for(phase))


def _find_class(patcher: Patcher, module: str, name: str) -> Any:
    owner = getattr(sys.modules.get(module), name, None)
    if owner is None:
        patcher.add_missing(name)
    return owner


class LightningLogs:
    """Values passed to `self.log`: since the last step, in the last epoch, and in an evaluation."""

    def __init__(self) -> None:
        self.step_metrics: dict[str, Any] = {}
        self.epoch_metrics: dict[str, Any] = {}
        self.evaluation_metrics: dict[str, Any] = {}

    def on_update(self, _: None, collection: Any, key: str, *__: Any, **___: Any) -> None:
        """Called when a value was logged."""
        if collection.training:
            self.step_metrics[key] = collection[key]

    def on_compute(self, metrics: Any, collection: Any, on_step: bool) -> None:
        """Called when Lightning computes the metrics of a batch or of an epoch."""
        if not on_step:
            (self.epoch_metrics if collection.training else self.evaluation_metrics).update(
                metrics["callback"]
            )

    def pop_step_metrics(self) -> dict[str, Any]:
        """Values logged per step since the last call, unreduced."""
        metrics, self.step_metrics = self.step_metrics, {}
        logged = [metric for metric in metrics.values() if metric.meta.on_step]
        return _readable_scalars({metric.meta.name: metric._forward_cache for metric in logged})  # noqa: SLF001

    def pop_epoch_metrics(self) -> dict[str, Any]:
        """Metrics of the epoch that ended; `x_epoch` if `x` is also logged per step."""
        metrics, self.epoch_metrics = self.epoch_metrics, {}
        return _readable_scalars({n: v for n, v in metrics.items() if f"{n}_epoch" not in metrics})

    def pop_evaluation_metrics(self) -> dict[str, Any]:
        """Metrics of the evaluation that ended."""
        metrics, self.evaluation_metrics = self.evaluation_metrics, {}
        return _readable_scalars({n: v for n, v in metrics.items() if f"{n}_epoch" not in metrics})


class AccumulationWindow:
    """Loss of the batches whose gradients one step accumulates.

    Lightning steps an optimizer with a closure that computes the last batch. A closure may be
    called several times, so its loss replaces the sum so far; the loss of the other batches is
    therefore added to the loss inside the closure.
    """

    def __init__(self, patcher: Patcher) -> None:
        self._patcher = patcher
        self._accumulated: Any = None
        self._latest: Any = None

    def on_backward(self, trainer: Any, loss: Any) -> None:
        """Called before a backward pass from this loss."""
        if (
            trainer.accumulate_grad_batches == 1
            or not trainer.lightning_module.automatic_optimization
        ):
            return
        raw_loss = read_number(getattr(loss, RAW_LOSS_ATTRIBUTE, loss))
        # A copy, since the trainer may change the loss in place.
        self._latest = raw_loss if type(raw_loss) is float else raw_loss.clone()
        thread = self._patcher.loop.thread_state
        if self._accumulated is not None and thread.stepping_optimizers:
            thread.explicit_loss = self._accumulated + self._latest

    def on_batch_end(self, has_stepped: bool) -> None:
        """Called at the end of a batch, with or without a step."""
        latest, self._latest = self._latest, None
        if has_stepped or latest is None:
            self._accumulated = None
        else:
            self._accumulated = latest if self._accumulated is None else self._accumulated + latest


class LightningObserver:
    """Records what a trainer does. Holds no reference to the trainer's objects."""

    def __init__(self, patcher: Patcher, package: str) -> None:
        self._patcher, self._package = patcher, package
        self.logs, self._window = LightningLogs(), AccumulationWindow(patcher)
        self._last_step: int | None = None
        self._trainer_ref: Any = None
        """Weak reference to the registered trainer."""

    def wrap_search(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """For `Patcher.replace`: no step inside the wrapped function is one of the training."""
        loop = self._patcher.loop

        @functools.wraps(original)
        def search(*args: Any, **kwargs: Any) -> Any:
            loop.is_search = True
            try:
                return original(*args, **kwargs)
            finally:
                loop.is_search = False

        return search

    def on_callback_hook(self, trainer: Any, hook: str, *given: Any, **_: Any) -> None:
        """Called before a trainer calls a hook of its callbacks."""
        if self._patcher.loop.is_search:
            return
        if hook == "on_train_start" or (trainer.training and not self._is_known(trainer)):
            self._register_trainer(trainer, hook)
        if hook in {"on_train_end", "on_exception"}:
            self._patcher.recorder.commands.framework_handles = False
        if hook == "on_before_backward":
            self._window.on_backward(trainer, *given)
        elif hook in {"on_validation_start", "on_test_start"}:
            self.logs.evaluation_metrics = {}
        elif hook == "on_validation_end" and not trainer.sanity_checking:
            self._report_evaluation(trainer.global_step)

    def on_batch_end(self, connector: Any) -> None:
        """Called at the end of a batch, which is the end of a step if an optimizer stepped."""
        trainer = connector.trainer
        if self._patcher.loop.is_search or not trainer.training:
            return
        last_step, self._last_step = self._last_step, trainer.global_step
        self._window.on_batch_end(last_step != self._last_step)
        if last_step == self._last_step:
            return
        self._patcher.recorder.log_from_framework(self.logs.pop_step_metrics(), self._last_step)
        self._execute_commands(trainer)

    def on_epoch_end(self, _: None, connector: Any) -> None:
        """Called at the end of an epoch of training or evaluation."""
        values = self.logs.pop_epoch_metrics()
        if values and not self._patcher.loop.is_search:
            self._patcher.recorder.log_from_framework(values, connector.trainer.global_step)

    def on_save(self, _: None, trainer: Any, filepath: Any, *__: Any, **___: Any) -> None:
        """Called when a checkpoint was written."""
        if self._patcher.loop.is_search:
            # The search deletes it at its end.
            return
        is_path = isinstance(filepath, str | PathLike)
        location = {"path": str(Path(filepath).absolute())} if is_path else {}
        self._patcher.recorder.record_event(Event.SAVE, trainer.global_step, location)

    def _is_known(self, trainer: Any) -> bool:
        return self._trainer_ref is not None and self._trainer_ref() is trainer

    def _register_trainer(self, trainer: Any, hook: str) -> None:
        """Register a trainer at its start, or at its first observed hook; record its metadata."""
        self._trainer_ref = weakref.ref(trainer)
        checks = self._patcher.loop.checks
        if checks is not None and getattr(trainer, "overfit_batches", False):
            # The same few batches again and again are the purpose.
            checks.leave_out("batches")
        if hook == "on_train_start":
            self._last_step, self.logs.step_metrics = trainer.global_step, {}
            self._window = AccumulationWindow(self._patcher)
            self._patcher.loop.begin_training(is_resumed=trainer.global_step > 0)
        if trainer.local_rank == 0:
            metadata = lightning_metadata(trainer, self._package)
            self._patcher.recorder.record_event(Event.METADATA, trainer.global_step, metadata)

    def _execute_commands(self, trainer: Any) -> None:
        """Execute the actions that are due at this step, at the point where callbacks save."""
        commands = self._patcher.recorder.commands
        commands.framework_handles = True
        actions = commands.pop_actions(trainer.global_step)
        if "stop" in actions:
            trainer.should_stop = True
        if "checkpoint" in actions:
            dirpath = getattr(trainer.checkpoint_callback, "dirpath", None)
            folder = Path(dirpath or Path(trainer.default_root_dir) / "checkpoints")
            _save_checkpoint(trainer, folder / f"sentinel-step={trainer.global_step}.ckpt")

    def _report_evaluation(self, step: int) -> None:
        self._patcher.recorder.record_event(Event.EVAL, step, self.logs.pop_evaluation_metrics())


def _readable_scalars(values: dict[str, Any]) -> dict[str, Any]:
    """The numbers, and the tensors with one element, which stay on their device."""
    scalars: dict[str, Any] = {}
    for name, value in values.items():
        try:
            scalars[name] = read_number(value)
        except RejectedValueError:
            continue
    return scalars


def _save_checkpoint(trainer: Any, path: Path) -> None:
    """Save on all ranks. If this one fails, it still enters the barrier before it raises."""
    try:
        trainer.save_checkpoint(path)
    except Exception:
        trainer.strategy.barrier("Trainer.save_checkpoint")
        raise
