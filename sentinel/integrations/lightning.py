"""Lightning: `Trainer`, with automatic or manual optimization, whenever it was built.

Taps: `_ResultCollection.update_metrics` and `metrics`, which what `self.log` is given passes, by
the batch and by the epoch; `_LoggerConnector.on_batch_end`, where a step has its number;
`_call_callback_hooks`, by which a trainer tells its callbacks what it does; the loops of evaluation
and prediction; and `Trainer.save_checkpoint`. Nothing is computed, reduced or read that Lightning
would not have: values on a device are handed on as they are. What is asked of the run is done when
a batch is done: `should_stop`, and `save_checkpoint`, which every rank calls at the same step.

The step's number is `trainer.global_step`, which counts the steps of all optimizers. Loss, gradient
norm and learning rate are found by the taps of plain PyTorch.
"""

from __future__ import annotations

import sys
import weakref
from os import PathLike
from pathlib import Path
from typing import Any

from sentinel.client.capture.framework_metadata import lightning_metadata
from sentinel.client.capture.loop import reset_loop
from sentinel.client.capture.loss import RAW_LOSS_ATTRIBUTE
from sentinel.client.capture.patcher import Patcher, exclude_from_compile
from sentinel.client.capture.phases import PhaseRecorder
from sentinel.client.capture.scalars import RejectedValueError, read_number
from sentinel.client.capture.tracker import ignore_trackers_during
from sentinel.model.record import Event

FRAMEWORK = "lightning.pytorch"


def attach(patcher: Patcher) -> None:
    """Put the taps in."""
    attach_package(patcher, FRAMEWORK)


def attach_package(patcher: Patcher, package: str) -> None:
    """Put the taps into that package: Lightning goes by two names."""
    logs = f"{package}.trainer.connectors.logger_connector"
    results = _find_class(patcher, f"{logs}.result", "_ResultCollection")
    connector = _find_class(patcher, f"{logs}.logger_connector", "_LoggerConnector")
    trainer = _find_class(patcher, f"{package}.trainer.trainer", "Trainer")
    call = sys.modules.get(f"{package}.trainer.call")
    events, phases = LightningObserver(patcher, package), PhaseRecorder(patcher)
    if results is not None:
        patcher.wrap(results, "update_metrics", after=events.logs.on_update)
        # What is logged may be logged in what is compiled, which is not to be broken up by us.
        patcher.replace(results, "update_metrics", exclude_from_compile)
        patcher.wrap(results, "metrics", after=events.logs.on_compute)
    if connector is not None:
        patcher.wrap(connector, "on_batch_end", before=events.on_batch_end)
        patcher.wrap(connector, "on_epoch_end", after=events.on_epoch_end)
        ignore_trackers_during(patcher, connector, "log_metrics")
    if call is not None:
        patcher.wrap(call, "_call_callback_hooks", before=events.on_callback_hook)
    if trainer is not None:
        patcher.wrap(trainer, "save_checkpoint", after=events.on_save)
        patcher.replace(trainer, "save_checkpoint", phases.wrapper_for("save"))
    for file, loop, phase in (
        ("evaluation_loop", "_EvaluationLoop", "eval"),
        ("prediction_loop", "_PredictionLoop", "predict"),
    ):
        owner = _find_class(patcher, f"{package}.loops.{file}", loop)
        if owner is not None:
            patcher.replace(owner, "run", phases.wrapper_for(phase))


def _find_class(patcher: Patcher, module: str, name: str) -> Any:
    found = getattr(sys.modules.get(module), name, None)
    if found is None:
        patcher.add_missing(name)
    return found


class LightningLogs:
    """What `self.log` was given: since the last step, in the last epoch, and in an evaluation."""

    def __init__(self) -> None:
        self.step_metrics: dict[str, Any] = {}
        self.epoch_metrics: dict[str, Any] = {}
        self.evaluation_metrics: dict[str, Any] = {}

    def on_update(self, _: None, collection: Any, key: str, *__: Any, **___: Any) -> None:
        """Something was logged."""
        if collection.training:
            self.step_metrics[key] = collection[key]

    def on_compute(self, metrics: Any, collection: Any, on_step: bool) -> None:
        """Lightning brings together what is to be shown, of a batch or of many."""
        if not on_step:
            (self.epoch_metrics if collection.training else self.evaluation_metrics).update(
                metrics["callback"]
            )

    def pop_step_metrics(self) -> dict[str, Any]:
        """What was logged by the step since the last one, as it is."""
        fresh, self.step_metrics = self.step_metrics, {}
        logged = [metric for metric in fresh.values() if metric.meta.on_step]
        return _readable_scalars({metric.meta.name: metric._forward_cache for metric in logged})  # noqa: SLF001

    def pop_epoch_metrics(self) -> dict[str, Any]:
        """What was logged by the epoch that ended; `x_epoch` where `x` is told by the step."""
        found, self.epoch_metrics = self.epoch_metrics, {}
        return _readable_scalars({n: v for n, v in found.items() if f"{n}_epoch" not in found})

    def pop_evaluation_metrics(self) -> dict[str, Any]:
        """What was logged in the evaluation that ended."""
        found, self.evaluation_metrics = self.evaluation_metrics, {}
        return _readable_scalars({n: v for n, v in found.items() if f"{n}_epoch" not in found})


class AccumulationWindow:
    """The loss of the batches whose gradients one step sums up.

    Lightning steps an optimizer with a closure, and the last batch of the window is computed in it.
    A closure may be asked several times, so what it computes replaces what was summed before it:
    the loss of the other batches has to be handed to it.
    """

    def __init__(self, patcher: Patcher) -> None:
        self._patcher = patcher
        self._accumulated: Any = None
        self._latest: Any = None

    def on_backward(self, trainer: Any, loss: Any) -> None:
        """A backward pass from this loss is about to begin."""
        if (
            trainer.accumulate_grad_batches == 1
            or not trainer.lightning_module.automatic_optimization
        ):
            return
        found = read_number(getattr(loss, RAW_LOSS_ATTRIBUTE, loss))
        # A copy, since whoever has the loss may change it in place.
        self._latest = found if type(found) is float else found.clone()
        thread = self._patcher.loop.thread_state
        if self._accumulated is not None and thread.stepping_optimizers:
            thread.explicit_loss = self._accumulated + self._latest

    def on_batch_end(self, has_stepped: bool) -> None:
        """A batch is done, with the step or before it."""
        latest, self._latest = self._latest, None
        if has_stepped or latest is None:
            self._accumulated = None
        else:
            self._accumulated = latest if self._accumulated is None else self._accumulated + latest


class LightningObserver:
    """What a trainer does. Nothing of the trainer's is kept."""

    def __init__(self, patcher: Patcher, package: str) -> None:
        self._patcher, self._package = patcher, package
        self.logs, self._window = LightningLogs(), AccumulationWindow(patcher)
        self._last_step: int | None = None
        self._trainer_ref: Any = None
        """The trainer, weakly, that is known already."""

    def on_callback_hook(self, trainer: Any, hook: str, *given: Any, **_: Any) -> None:
        """A trainer tells its callbacks something, and has not told them yet."""
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
        """A batch is done; if an optimizer stepped in it, so is a step."""
        trainer = connector.trainer
        if not trainer.training:
            return
        before, self._last_step = self._last_step, trainer.global_step
        self._window.on_batch_end(before != self._last_step)
        if before == self._last_step:
            return
        self._patcher.recorder.log_from_framework(self.logs.pop_step_metrics(), self._last_step)
        self._execute_commands(trainer)

    def on_epoch_end(self, _: None, connector: Any) -> None:
        """An epoch is done, of training or of an evaluation."""
        values = self.logs.pop_epoch_metrics()
        if values:
            self._patcher.recorder.log_from_framework(values, connector.trainer.global_step)

    def on_save(self, _: None, trainer: Any, filepath: Any, *__: Any, **___: Any) -> None:
        """A checkpoint was written, by a callback or by whoever asked for it."""
        known = isinstance(filepath, str | PathLike)
        facts = {"path": str(Path(filepath).absolute())} if known else {}
        self._patcher.recorder.record_event(Event.SAVE, trainer.global_step, facts)

    def _is_known(self, trainer: Any) -> bool:
        return self._trainer_ref is not None and self._trainer_ref() is trainer

    def _register_trainer(self, trainer: Any, hook: str) -> None:
        """A training begins, or we come upon one: say what it is."""
        self._trainer_ref = weakref.ref(trainer)
        if hook == "on_train_start":
            self._last_step, self.logs.step_metrics = trainer.global_step, {}
            self._window = AccumulationWindow(self._patcher)
            reset_loop(self._patcher.loop)
        if trainer.local_rank == 0:
            facts = lightning_metadata(trainer, self._package)
            self._patcher.recorder.record_event(Event.METADATA, trainer.global_step, facts)

    def _execute_commands(self, trainer: Any) -> None:
        """Do what is asked of every rank at this step, where callbacks save as well."""
        errands = self._patcher.recorder.commands
        errands.framework_handles = True
        words = errands.pop_actions(trainer.global_step)
        if "stop" in words:
            trainer.should_stop = True
        if "checkpoint" in words:
            known = getattr(trainer.checkpoint_callback, "dirpath", None)
            folder = Path(known or Path(trainer.default_root_dir) / "checkpoints")
            _save_checkpoint(trainer, folder / f"sentinel-step={trainer.global_step}.ckpt")

    def _report_evaluation(self, step: int) -> None:
        self._patcher.recorder.record_event(Event.EVAL, step, self.logs.pop_evaluation_metrics())


def _readable_scalars(found: dict[str, Any]) -> dict[str, Any]:
    """Numbers, and tensors that hold one and are still on their device."""
    read: dict[str, Any] = {}
    for name, value in found.items():
        try:
            read[name] = read_number(value)
        except RejectedValueError:
            continue
    return read


def _save_checkpoint(trainer: Any, path: Path) -> None:
    """Save on all ranks. Where this one cannot, it still meets the others before it goes on."""
    try:
        trainer.save_checkpoint(path)
    except Exception:
        trainer.strategy.barrier("Trainer.save_checkpoint")
        raise
