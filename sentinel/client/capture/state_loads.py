"""Loads of the state of a training under way, which are a resume if the step then goes back.

Going back to a checkpoint after a loss spike is common within one process. Only loads into the
optimizer of the training or its model count: a target network or a reward model is loaded often.
"""

from __future__ import annotations

from typing import Any

from sentinel.client.capture.loop import TrainingLoop

MAX_LOADS = 64
"""Loads after which no more are recorded: a training that loads all the time does not resume."""


class StateLoads:
    """Records the loads of one training loop."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        self._count = 0
        self._last_step_index = -1

    def after_optimizer_load(self, _: Any, optimizer: Any, *__: Any, **___: Any) -> None:
        """Called after `Optimizer.load_state_dict`."""
        primary = self._loop.primary_ref()
        # Accelerate loads the state of each optimizer into itself, which is empty before a step.
        if optimizer.state:
            if self._loop.checks is not None:
                self._loop.checks.is_resumed = True
            # Parameters whose state is loaded are those of the training under way.
            self._loop.trained.add(optimizer)
        elif primary is None:
            return
        if primary in (None, optimizer):
            self._record()

    def after_module_load(
        self, keys: Any, module: Any, state_dict: Any, *_: Any, **__: Any
    ) -> None:
        """Called after `Module.load_state_dict`."""
        if self._loop.checks is not None and keys is not None:
            self._loop.checks.process.loads.add_state_dict(module, state_dict, keys)
        if self._loop.observing_checks is not None:
            self._loop.observing_checks.on_load()
        # Before the first step, weights without the state of an optimizer begin a training.
        if self._loop.recorder.clock.step_index and self._is_trained(module):
            self._record()

    def _is_trained(self, module: Any) -> bool:
        primary = self._loop.primary_ref()
        if primary is None:
            # An engine reports its steps without an optimizer.
            return module.training and any(p.requires_grad for p in module.parameters())
        trained = {id(p) for group in primary.param_groups for p in group["params"]}
        return any(id(parameter) in trained for parameter in module.parameters())

    def _record(self) -> None:
        recorder = self._loop.recorder
        step_index = recorder.clock.step_index
        # Model, optimizer and scheduler are loaded together.
        if step_index == self._last_step_index or self._count >= MAX_LOADS:
            return
        self._last_step_index, self._count = step_index, self._count + 1
        recorder.record_resume()
