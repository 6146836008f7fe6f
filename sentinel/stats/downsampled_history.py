"""Trace: what a series was at any earlier step, in at most 128 points however long the run."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

MAX_POINTS = 128
"""Points kept; when there are more, every second one goes."""


@dataclass
class DownsampledHistory:
    """Points of a series by step, the further apart the longer the run.

    >>> trace = Trace()
    >>> for step in range(0, 40, 10):
    ...     trace.add(step, 2.0 * step)
    >>> trace.at(15), trace.at(35), trace.at(-1)
    (30.0, 60.0, None)
    """

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    spacing_steps: int = 1

    def add(self, step: int, value: float) -> None:
        """Take the value of a step; one that is no later than the last is left out."""
        if self.steps and step < self.steps[-1] + self.spacing_steps:
            return
        self.steps.append(step)
        self.values.append(value)
        if len(self.steps) > MAX_POINTS:
            self.spacing_steps = 2 * max(1, (self.steps[-1] - self.steps[0]) // MAX_POINTS)
            del self.steps[1::2], self.values[1::2]

    def value_at(self, step: int) -> float | None:
        """Value at a step, linear between its neighbours; the last one beyond, None before."""
        if not self.steps or step < self.steps[0]:
            return None
        place = bisect_left(self.steps, step)
        if place == len(self.steps):
            return self.values[-1]
        if self.steps[place] == step:
            return self.values[place]
        low, high = self.steps[place - 1], self.steps[place]
        share = (step - low) / (high - low)
        return self.values[place - 1] * (1 - share) + self.values[place] * share

    def discard_from(self, step: int) -> None:
        """Forget this step and all later ones."""
        place = bisect_left(self.steps, step)
        del self.steps[place:], self.values[place:]
