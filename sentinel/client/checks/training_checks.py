"""Runs the checks of one training. An error switches off the check in which it occurs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import ref

from sentinel.client.checks.check import Check, CheckedTraining, Evidence
from sentinel.client.checks.gradients import GradientClearing
from sentinel.client.checks.mode import TrainingMode
from sentinel.client.checks.replicas import Replicas
from sentinel.client.checks.weights import WeightUpdates
from sentinel.client.recorder import Recorder
from sentinel.model.record import Event

CHECKS: tuple[type[Check], ...] = (WeightUpdates, GradientClearing, TrainingMode, Replicas)


class TrainingChecks:
    """The checks of the primary optimizer's training, which begin anew with another optimizer.

    `find_optimizers` gives those that took a step in this training; `rank` is this rank's number.
    """

    def __init__(
        self, recorder: Recorder, find_optimizers: Callable[[], Iterable[Any]], rank: int = 0
    ) -> None:
        self._recorder, self._find_optimizers, self._rank = recorder, find_optimizers, rank
        self._training: CheckedTraining | None = None
        self._checks: list[Check] = []
        self._disabled: set[str] = set()

    def before_backward(self, roots: Sequence[Any]) -> None:
        """A backward pass from these roots begins."""
        if self._training is not None:
            self._training.roots = roots
            for check in self._checks:
                self._run(check, check.before_backward)
            self._training.roots = ()

    def after_backward(self) -> None:
        """A backward pass ended."""
        for check in self._checks:
            self._run(check, check.after_backward)

    def before_step(self, optimizer: Any) -> None:
        """A step of the primary optimizer begins, without closure."""
        if self._training is None or self._training.find_optimizer() is not optimizer:
            self._begin(optimizer)
        for check in self._checks:
            self._run(check, check.before_step)

    def after_step(self) -> None:
        """A step of the primary optimizer ended, without closure."""
        if self._training is not None:
            self._training.steps += 1
            for check in self._checks:
                self._run(check, check.after_step)

    def end_step(self) -> None:
        """The training step is complete."""
        for check in self._checks:
            self._run(check, check.end_step)

    def _begin(self, optimizer: Any) -> None:
        training = self._training = CheckedTraining(
            ref(optimizer),
            self._find_optimizers,
            self._record,
            self._recorder.device_copies,
            self._rank,
        )
        self._checks = [kind(training) for kind in CHECKS if kind.name not in self._disabled]

    def _run(self, check: Check, body: Callable[[], None]) -> None:
        try:
            with sys.modules["torch"].no_grad():
                body()
        except Exception as error:
            self._disabled.add(check.name)
            self._checks = [each for each in self._checks if each is not check]
            state = f"off: {type(error).__name__} in {body.__name__}"
            key = f"patch/check_{check.name}"
            self._recorder.record_event(Event.METADATA, None, {key: state})
            self._recorder.try_lock.guard.count_error(error)

    def _record(self, attributes: Evidence) -> None:
        self._recorder.record_event(Event.CHECK, None, attributes)
