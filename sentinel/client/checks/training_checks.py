"""Runs the checks of one training. An error switches off the check in which it occurs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self
from weakref import ref

from sentinel.client.capture.owned_modules import SeenModules
from sentinel.client.checks.accumulation import Accumulation
from sentinel.client.checks.batches import Batches
from sentinel.client.checks.check import Check, CheckedTraining, Evidence, check_report
from sentinel.client.checks.evaluation import EvaluationPasses
from sentinel.client.checks.first_loss import FirstLoss, is_preference_loss
from sentinel.client.checks.gradients import GradientClearing
from sentinel.client.checks.inputs import Inputs
from sentinel.client.checks.loaded_weights import LoadedWeights
from sentinel.client.checks.mode import TrainingMode
from sentinel.client.checks.observed_process import ObservedProcess
from sentinel.client.checks.precision import Precision
from sentinel.client.checks.replicas import Replicas
from sentinel.client.checks.scaler_steps import ScalerSteps
from sentinel.client.checks.schedule import Schedule
from sentinel.client.checks.set_up import SetUp
from sentinel.client.checks.weight_changes import WeightChanges
from sentinel.client.checks.weights import WeightUpdates
from sentinel.client.recorder import Recorder
from sentinel.model.record import Event

CHECKS: tuple[type[Check], ...] = (
    WeightUpdates, GradientClearing, Accumulation, TrainingMode, Replicas, Batches, Schedule,
    WeightChanges, EvaluationPasses, Precision, SetUp, LoadedWeights, FirstLoss,
    Inputs,
)  # fmt: skip

FIRST_STEPS = 20
"""Steps at the beginning of a training during which the checks observe every one."""
PERIOD, OBSERVED_STEPS = 100, 6
"""Later they observe the last steps of each period."""

UPDATES_WITHOUT_STEP = 20
"""Updates whose gradients are computed and cleared before the first step of any optimizer. Fewer
are those of a search for the batch size, or of a warm-up of CUDA graphs."""

HOOKS = (
    "on_begin", "before_backward", "after_backward", "before_step", "after_step", "on_first_batch",
    "on_batch", "on_fetch", "on_schedule", "on_eval", "on_save", "on_load",
    "on_framework_backward",
)  # fmt: skip
"""Methods of checks."""

Hook = tuple[Check, Callable[..., None]]


class TrainingChecks:
    """The checks of the primary optimizer's training, which begin anew with another optimizer.

    `find_optimizers` gives those that took a step in this training; `rank` is this rank's number.
    """

    def __init__(
        self,
        recorder: Recorder,
        find_optimizers: Callable[[], Iterable[Any]],
        seen_modules: SeenModules,
        rank: int = 0,
    ) -> None:
        self._recorder, self._find_optimizers = recorder, find_optimizers
        self._training: CheckedTraining | None = None
        self._checks: list[Check] = []
        self._disabled: set[str] = set()
        self.process = ObservedProcess(
            seen_modules,
            self._record,
            self._record_metadata,
            recorder.device_copies,
            recorder.try_lock.guard.count_error,
            rank,
        )
        self.is_resumed = self._has_pass = False
        """Whether an optimizer was given a state, and whether there was a backward pass."""
        self._first_preference_loss: Any = None
        self.scaler_steps = ScalerSteps(self._record, rank)
        self._updates_without_step = 0
        self._steps, self._first_observed, self._last_observed = 0, 0, FIRST_STEPS
        """Steps so far, those after which they are observed, and the last one observed."""
        self._hooks: dict[str, list[Hook]] = {}
        """What is called at each point of a step, by name."""

    def before_backward(self, roots: Sequence[Any]) -> None:
        """A backward pass from these roots begins, or from given gradients without roots."""
        if self._training is not None:
            self._training.roots = roots
            self._run("before_backward")
            self._training.roots = ()

    def before_first_step(self, roots: Sequence[Any]) -> None:
        """A backward pass from these roots begins, and no optimizer has taken a step yet."""
        if not self._has_pass and is_preference_loss(roots[0]):
            self._first_preference_loss = roots[0].detach().clone()
        self._has_pass = True

    def after_backward(self) -> None:
        """A backward pass ended."""
        self._run("after_backward")

    def before_step(self) -> None:
        """A step of the optimizer begins; its closure, if any, has run once."""
        self._run("before_step")

    def after_step(self, step_seconds: float) -> Self | None:
        """A step of the optimizer ended; returns itself if the next one is observed.

        The step before it took that time.
        """
        self._steps += 1
        if self._steps < self._first_observed or self._training is None:
            return None
        self._training.steps = self._steps
        if self._steps > self._first_observed:
            self._training.step_seconds = step_seconds
            self._recorder.device_copies.deliver_vectors()
            self._run("after_step")
            if self._steps >= self._last_observed:
                self._last_observed = (self._steps // PERIOD + 1) * PERIOD
                self._first_observed = self._last_observed - OBSERVED_STEPS
                return None
        return self

    def leave_out(self, name: str) -> None:
        """Leave out a check in the trainings that begin from now on."""
        self._disabled.add(name)

    def on_batch(self, iterator: Any, batch: Any, *, is_first: bool, is_observed: bool) -> None:
        """A data loader gives a batch: the first one of a pass, or one of an observed step."""
        if self._training is not None:
            self._training.steps = self._steps
            self._run("on_fetch", iterator, is_first=is_first)
        elif is_first:
            self.process.loads.add_evaluation()
        if not sys.modules["torch"].is_grad_enabled():
            # Of an evaluation.
            return
        if is_first and self._training is None:
            self.process.passes.add(iterator, batch)
        elif is_first:
            self._run("on_first_batch", iterator, batch)
        if is_observed:
            self._run("on_batch", iterator, batch)

    def on_schedule(self, scheduler: Any) -> None:
        """A scheduler took a step."""
        self._run("on_schedule", scheduler)

    def on_eval(self, module: Any) -> None:
        """A module is set to evaluation mode."""
        if self._training is None:
            self.process.loads.add_eval(module)
        self._run("on_eval", module)

    def on_save(self) -> None:
        """`torch.save` begins."""
        self._run("on_save")

    def on_load(self) -> None:
        """The state of a module is loaded."""
        self._run("on_load")

    def on_framework_backward(self, framework: str, precision: str) -> None:
        """A framework runs the next backward pass, at a precision such as `bf16`."""
        self._run("on_framework_backward", framework, precision)

    def on_cleared_without_step(self) -> None:
        """The gradients of a backward pass are cleared, and no optimizer has taken a step yet."""
        self._updates_without_step += 1
        # The steps of a scaler that skips all of them are judged by themselves.
        if self._updates_without_step == UPDATES_WITHOUT_STEP and not self.scaler_steps.in_a_row:
            evidence = {"updates": float(UPDATES_WITHOUT_STEP)}
            self._record(check_report(WeightUpdates.name, "no_step", self.process.rank, evidence))

    def after_engine_step(
        self, optimizer: Any, model: Any, ranks: Sequence[int], step_seconds: float
    ) -> None:
        """An engine that owns its optimizer took a step: of its checks only the replicas are run.

        `ranks` are those that hold replicas of the model.
        """
        if self._training is not None and self._training.find_optimizer() is optimizer:
            self.after_step(step_seconds)
        else:
            self.begin(optimizer, (Replicas,)).set_engine(model, ranks)

    def begin(self, optimizer: Any, kinds: Sequence[type[Check]] = CHECKS) -> CheckedTraining:
        """The optimizer is the primary one from now on; its next step is observed."""
        self._steps, self._first_observed, self._last_observed = 0, 0, FIRST_STEPS
        training = self._training = CheckedTraining(
            self.process,
            ref(optimizer),
            self._find_optimizers,
            self._first_preference_loss,
            self.is_resumed,
        )
        self._first_preference_loss = None
        self.close()
        self._checks = [kind(training) for kind in kinds if kind.name not in self._disabled]
        self._hooks = self._find_hooks()
        self._run("on_begin")
        return training

    def close(self) -> None:
        """Leave nothing on the model and in PyTorch."""
        for each in self._checks:
            each.close()

    def _find_hooks(self) -> dict[str, list[Hook]]:
        """The methods that the checks override, by name."""
        return {
            name: [
                (check, getattr(check, name))
                for check in self._checks
                if getattr(type(check), name) is not getattr(Check, name)
            ]
            for name in HOOKS
        }

    def _run(self, name: str, *args: Any, **kwargs: Any) -> None:
        for check, hook in self._hooks.get(name, ()):
            try:
                hook(*args, **kwargs)
            except Exception as error:
                self._disable(check, name, error)

    def _disable(self, check: Check, where: str, error: Exception) -> None:
        self._disabled.add(check.name)
        self._checks = [each for each in self._checks if each is not check]
        self._hooks = self._find_hooks()
        state = {f"patch/check_{check.name}": f"off: {type(error).__name__} in {where}"}
        self._record_metadata(state)
        self._recorder.try_lock.guard.count_error(error)

    def _record_metadata(self, attributes: Evidence) -> None:
        self._recorder.record_event(Event.METADATA, None, attributes)

    def _record(self, attributes: Evidence) -> None:
        self._recorder.record_event(Event.CHECK, None, attributes)
