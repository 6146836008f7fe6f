"""Onset tracker: the step at which a condition that still holds began to hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class OnsetTracker:
    """Remembers the first step of the present, unbroken series of steps in which a condition holds.

    >>> onset = OnsetTracker()
    >>> [onset.update(step, holds=step in (2, 3, 5)) for step in range(6)]
    [None, None, 2, 2, None, 5]
    """

    step: int | None = None

    def update(self, step: int, *, holds: bool) -> int | None:
        """Add one step; returns the onset, or None if the condition does not hold."""
        if not holds:
            self.step = None
        elif self.step is None:
            self.step = step
        return self.step
