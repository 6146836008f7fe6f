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

    beat: int = 0
    step: int = 0
    optimizer_steps: int = 0
    in_progress: bool = False
    given: int | None = None
    spoken: bool = False
    named: bool = False
    _coming: int | None = None

    def stepped(self) -> None:
        """An optimizer step was taken."""
        self.optimizer_steps += 1
        self.beat += 1
        self.step = self.step + 1 if self._coming is None else self._coming
        self._coming, self.in_progress = None, False

    def counted(self, step: int) -> bool:
        """An engine's own number of the step to come, which holds until the trainer gives one."""
        if not self.named:
            self._coming = step
        return not self.named

    def place(self, step: int | None) -> tuple[int, int]:
        """Step and beat of something said now, under the trainer's number where it gave one."""
        self.named = self.named or step is not None
        if self.in_progress:
            self._coming = self._coming if step is None else step
            if self.optimizer_steps:
                return self.step + 1 if self._coming is None else self._coming, self.beat + 1
        if not self.optimizer_steps and self._is_new(step):
            # The first word is not a step taken: it may well be said by one rank alone.
            self.beat = self.next_beat(step)
            self.spoken = True
            self.step = self.beat
        if step is not None:
            self.step = self.given = step
        return self.step, self.beat

    def next_beat(self, step: int | None) -> int:
        """Beat of a new word while nothing counts optimizer steps.

        It is the trainer's number where that allows, so that ranks which speak of different steps
        are not taken to speak of one; and it only grows.
        """
        beat = self.beat + self.spoken
        return beat if step is None else max(beat, step)

    def _is_new(self, step: int | None) -> bool:
        return self.given is None if step is None else step != self.given
