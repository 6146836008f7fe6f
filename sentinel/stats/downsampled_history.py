"""History of a series by step, downsampled to at most 128 points."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace

MAX_POINTS = 128
"""Points stored; with more, every second one is deleted."""


@dataclass(slots=True)
class DownsampledHistory:
    """Points of a series by step; the longer the run, the greater their spacing.

    >>> history = DownsampledHistory()
    >>> for step in range(0, 40, 10):
    ...     history.add(step, 2.0 * step)
    >>> history.value_at(15), history.value_at(35), history.value_at(-1)
    (30.0, 60.0, None)
    """

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    spacing_steps: int = 1

    def copy(self) -> DownsampledHistory:
        """A copy that later points do not change."""
        return replace(self, steps=self.steps.copy(), values=self.values.copy())

    def add(self, step: int, value: float) -> None:
        """Add the value of a step, unless it is too close to the last point or before it."""
        if self.steps and step < self.steps[-1] + self.spacing_steps:
            return
        self.steps.append(step)
        self.values.append(value)
        if len(self.steps) > MAX_POINTS:
            self.spacing_steps = 2 * max(1, (self.steps[-1] - self.steps[0]) // MAX_POINTS)
            del self.steps[1::2], self.values[1::2]

    def value_at(self, step: int) -> float | None:
        """Value at a step, interpolated linearly; the last value beyond the end, None before."""
        if not self.steps or step < self.steps[0]:
            return None
        index = bisect_left(self.steps, step)
        if index == len(self.steps):
            return self.values[-1]
        if self.steps[index] == step:
            return self.values[index]
        low, high = self.steps[index - 1], self.steps[index]
        share = (step - low) / (high - low)
        return self.values[index - 1] * (1 - share) + self.values[index] * share

    def discard_from(self, step: int) -> None:
        """Delete this step and all later ones."""
        index = bisect_left(self.steps, step)
        del self.steps[index:], self.values[index:]
