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

from sentinel.client.capture.lightning_config import run_facts
from sentinel.client.capture.loop import begin_anew
from sentinel.client.capture.loss import RAW
from sentinel.client.capture.patcher import Tap, uncompiled
from sentinel.client.capture.phases import Phases
from sentinel.client.capture.scalars import Refused, number
from sentinel.client.capture.tracker import repeats
from sentinel.model.record import Event

FRAMEWORK = "lightning.pytorch"


def attach(tap: Tap) -> None:
    """Put the taps in."""
    attach_to(tap, FRAMEWORK)


def attach_to(tap: Tap, package: str) -> None:
    """Put the taps into that package: Lightning goes by two names."""
    logs = f"{package}.trainer.connectors.logger_connector"
    results = _named(tap, f"{logs}.result", "_ResultCollection")
    connector = _named(tap, f"{logs}.logger_connector", "_LoggerConnector")
    trainer = _named(tap, f"{package}.trainer.trainer", "Trainer")
    call = sys.modules.get(f"{package}.trainer.call")
    events, phases = Events(tap, package), Phases(tap)
    if results is not None:
        tap.watch(results, "update_metrics", after=events.logged.updated)
        # What is logged may be logged in what is compiled, which is not to be broken up by us.
        tap.replace(results, "update_metrics", uncompiled)
        tap.watch(results, "metrics", after=events.logged.computed)
    if connector is not None:
        tap.watch(connector, "on_batch_end", before=events.batch_ended)
        tap.watch(connector, "on_epoch_end", after=events.epoch_ended)
        repeats(tap, connector, "log_metrics")
    if call is not None:
        tap.watch(call, "_call_callback_hooks", before=events.told)
    if trainer is not None:
        tap.watch(trainer, "save_checkpoint", after=events.saved)
        tap.replace(trainer, "save_checkpoint", phases.around("save"))
    for file, loop, phase in (
        ("evaluation_loop", "_EvaluationLoop", "eval"),
        ("prediction_loop", "_PredictionLoop", "predict"),
    ):
        owner = _named(tap, f"{package}.loops.{file}", loop)
        if owner is not None:
            tap.replace(owner, "run", phases.around(phase))


def _named(tap: Tap, module: str, name: str) -> Any:
    found = getattr(sys.modules.get(module), name, None)
    if found is None:
        tap.lacks(name)
    return found


class Logged:
    """What `self.log` was given: since the last step, in the last epoch, and in an evaluation."""

    def __init__(self) -> None:
        self.fresh: dict[str, Any] = {}
        self.epoch: dict[str, Any] = {}
        self.held_out: dict[str, Any] = {}

    def updated(self, _: None, collection: Any, key: str, *__: Any, **___: Any) -> None:
        """Something was logged."""
        if collection.training:
            self.fresh[key] = collection[key]

    def computed(self, metrics: Any, collection: Any, on_step: bool) -> None:
        """Lightning brings together what is to be shown, of a batch or of many."""
        if not on_step:
            (self.epoch if collection.training else self.held_out).update(metrics["callback"])

    def of_step(self) -> dict[str, Any]:
        """What was logged by the step since the last one, as it is."""
        fresh, self.fresh = self.fresh, {}
        logged = [metric for metric in fresh.values() if metric.meta.on_step]
        return _readable({metric.meta.name: metric._forward_cache for metric in logged})  # noqa: SLF001

    def of_epoch(self) -> dict[str, Any]:
        """What was logged by the epoch that ended; `x_epoch` where `x` is told by the step."""
        found, self.epoch = self.epoch, {}
        return _readable({n: v for n, v in found.items() if f"{n}_epoch" not in found})

    def of_evaluation(self) -> dict[str, Any]:
        """What was logged in the evaluation that ended."""
        found, self.held_out = self.held_out, {}
        return _readable({n: v for n, v in found.items() if f"{n}_epoch" not in found})


class Window:
    """The loss of the batches whose gradients one step sums up.

    Lightning steps an optimizer with a closure, and the last batch of the window is computed in it.
    A closure may be asked several times, so what it computes replaces what was summed before it:
    the loss of the other batches has to be handed to it.
    """

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._before: Any = None
        self._latest: Any = None

    def backward(self, trainer: Any, loss: Any) -> None:
        """A backward pass from this loss is about to begin."""
        if (
            trainer.accumulate_grad_batches == 1
            or not trainer.lightning_module.automatic_optimization
        ):
            return
        found = number(getattr(loss, RAW, loss))
        # A copy, since whoever has the loss may change it in place.
        self._latest = found if type(found) is float else found.clone()
        thread = self._tap.loop.thread
        if self._before is not None and thread.stepping:
            thread.explicit = self._before + self._latest

    def batch(self, stepped: bool) -> None:
        """A batch is done, with the step or before it."""
        latest, self._latest = self._latest, None
        if stepped or latest is None:
            self._before = None
        else:
            self._before = latest if self._before is None else self._before + latest


class Events:
    """What a trainer does. Nothing of the trainer's is kept."""

    def __init__(self, tap: Tap, package: str) -> None:
        self._tap, self._package = tap, package
        self.logged, self._window = Logged(), Window(tap)
        self._step: int | None = None
        self._met: Any = None
        """The trainer, weakly, that is known already."""

    def told(self, trainer: Any, hook: str, *given: Any, **_: Any) -> None:
        """A trainer tells its callbacks something, and has not told them yet."""
        if hook == "on_train_start" or (trainer.training and not self._knows(trainer)):
            self._meet(trainer, hook)
        if hook in {"on_train_end", "on_exception"}:
            self._tap.recorder.errands.led = False
        if hook == "on_before_backward":
            self._window.backward(trainer, *given)
        elif hook in {"on_validation_start", "on_test_start"}:
            self.logged.held_out = {}
        elif hook == "on_validation_end" and not trainer.sanity_checking:
            self._evaluated(trainer.global_step)

    def batch_ended(self, connector: Any) -> None:
        """A batch is done; if an optimizer stepped in it, so is a step."""
        trainer = connector.trainer
        if not trainer.training:
            return
        before, self._step = self._step, trainer.global_step
        self._window.batch(before != self._step)
        if before == self._step:
            return
        self._tap.recorder.hear(self.logged.of_step(), self._step)
        self._obey(trainer)

    def epoch_ended(self, _: None, connector: Any) -> None:
        """An epoch is done, of training or of an evaluation."""
        values = self.logged.of_epoch()
        if values:
            self._tap.recorder.hear(values, connector.trainer.global_step)

    def saved(self, _: None, trainer: Any, filepath: Any, *__: Any, **___: Any) -> None:
        """A checkpoint was written, by a callback or by whoever asked for it."""
        known = isinstance(filepath, str | PathLike)
        facts = {"path": str(Path(filepath).absolute())} if known else {}
        self._tap.recorder.say(Event.SAVE, trainer.global_step, facts)

    def _knows(self, trainer: Any) -> bool:
        return self._met is not None and self._met() is trainer

    def _meet(self, trainer: Any, hook: str) -> None:
        """A training begins, or we come upon one: say what it is."""
        self._met = weakref.ref(trainer)
        if hook == "on_train_start":
            self._step, self.logged.fresh = trainer.global_step, {}
            self._window = Window(self._tap)
            begin_anew(self._tap.loop)
        if trainer.local_rank == 0:
            facts = run_facts(trainer, self._package)
            self._tap.recorder.say(Event.FACTS, trainer.global_step, facts)

    def _obey(self, trainer: Any) -> None:
        """Do what is asked of every rank at this step, where callbacks save as well."""
        errands = self._tap.recorder.errands
        errands.led = True
        words = errands.take(trainer.global_step)
        if "stop" in words:
            trainer.should_stop = True
        if "checkpoint" in words:
            known = getattr(trainer.checkpoint_callback, "dirpath", None)
            folder = Path(known or Path(trainer.default_root_dir) / "checkpoints")
            _save(trainer, folder / f"sentinel-step={trainer.global_step}.ckpt")

    def _evaluated(self, step: int) -> None:
        self._tap.recorder.say(Event.EVAL, step, self.logged.of_evaluation())


def _readable(found: dict[str, Any]) -> dict[str, Any]:
    """Numbers, and tensors that hold one and are still on their device."""
    read: dict[str, Any] = {}
    for name, value in found.items():
        try:
            read[name] = number(value)
        except Refused:
            continue
    return read


def _save(trainer: Any, path: Path) -> None:
    """Save on all ranks. Where this one cannot, it still meets the others before it goes on."""
    try:
        trainer.save_checkpoint(path)
    except Exception:
        trainer.strategy.barrier("Trainer.save_checkpoint")
        raise
