"""Step clock: which step this is, by the rank's own count and by the trainer's number."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StepClock:
    """Counts the steps of one rank in one attempt.

    `beat` is the rank's own count: of optimizer steps, or, as long as there was none, of the
    different steps spoken of. `step` is the number the trainer gave last, carried on by the
    optimizer steps since. `in_progress` says that a backward pass ran since the last optimizer
    step: what is said then belongs to the step to come. `given` is the last number the trainer gave
    and `spoken` whether anything was said at all. `named` says that the trainer gave any number.
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
        """An optimizer step was taken."""
        self.optimizer_steps += 1
        self.step_index += 1
        self.step = self.step + 1 if self._next_step is None else self._next_step
        self._next_step, self.in_progress = None, False

    def set_engine_step(self, step: int) -> bool:
        """An engine's own number of the step to come, which holds until the trainer gives one."""
        if not self.has_trainer_step:
            self._next_step = step
        return not self.has_trainer_step

    def resolve(self, step: int | None) -> tuple[int, int]:
        """Step and beat of something said now, under the trainer's number where it gave one."""
        self.has_trainer_step = self.has_trainer_step or step is not None
        if self.in_progress:
            self._next_step = self._next_step if step is None else step
            if self.optimizer_steps:
                return (
                    self.step + 1 if self._next_step is None else self._next_step,
                    self.step_index + 1,
                )
        if not self.optimizer_steps and self._is_new(step):
            # The first word is not a step taken: it may well be said by one rank alone.
            self.step_index = self.next_step_index(step)
            self.has_logged = True
            self.step = self.step_index
        if step is not None:
            self.step = self.last_given_step = step
        return self.step, self.step_index

    def next_step_index(self, step: int | None) -> int:
        """Beat of a new word while nothing counts optimizer steps.

        It is the trainer's number where that allows, so that ranks which speak of different steps
        are not taken to speak of one; and it only grows.
        """
        beat = self.step_index + self.has_logged
        return beat if step is None else max(beat, step)

    def _is_new(self, step: int | None) -> bool:
        return self.last_given_step is None if step is None else step != self.last_given_step
