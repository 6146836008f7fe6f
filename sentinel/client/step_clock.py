"""The current step of a rank, by its own count and by the trainer's step number."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StepClock:
    """Counts the steps of one rank in one attempt.

    `step_index` is the rank's own count: of optimizer steps, or, before the first one, of distinct
    logged steps. `step` is the last number that the trainer gave, continued by the optimizer steps
    since. `in_progress` is set after a backward pass until the optimizer step: values logged in
    between belong to the coming step. `last_given_step` is the last number the trainer gave;
    `has_trainer_step` is whether it ever gave one, `has_logged` whether anything was logged.
    """

    step_index: int = 0
    step: int = 0
    optimizer_steps: int = 0
    in_progress: bool = False
    last_given_step: int | None = None
    has_logged: bool = False
    has_trainer_step: bool = False
    _next_step: int | None = None

    def advance(self) -> None:
        """Count an optimizer step."""
        self.optimizer_steps += 1
        self.step_index += 1
        self.step = self.step + 1 if self._next_step is None else self._next_step
        self._next_step, self.in_progress = None, False

    def set_engine_step(self, step: int) -> bool:
        """Use an engine's number for the coming step, unless the trainer has given numbers.

        Returns whether it is used.
        """
        if not self.has_trainer_step:
            self._next_step = step
        return not self.has_trainer_step

    def resolve(self, step: int | None) -> tuple[int, int]:
        """Step and step index of a value logged now; `step` is the trainer's number, if given."""
        self.has_trainer_step = self.has_trainer_step or step is not None
        if self.in_progress:
            self._next_step = self._next_step if step is None else step
            if self.optimizer_steps:
                return (
                    self.step + 1 if self._next_step is None else self._next_step,
                    self.step_index + 1,
                )
        if not self.optimizer_steps and self._is_new(step):
            # The first log does not count as a step: it may be made by one rank alone.
            self.step_index = self.next_step_index(step)
            self.has_logged = True
            self.step = self.step_index
        if step is not None:
            self.step = self.last_given_step = step
        return self.step, self.step_index

    def next_step_index(self, step: int | None) -> int:
        """Step index of a new log while there are no optimizer steps.

        It is the trainer's step number if that is larger, so that different steps of two ranks get
        different indices. It never decreases.
        """
        index = self.step_index + self.has_logged
        return index if step is None else max(index, step)

    def _is_new(self, step: int | None) -> bool:
        return self.last_given_step is None if step is None else step != self.last_given_step
