"""Recognizes two optimizers that step in turn, each after a backward pass of its own.

So do the optimizers of two networks that are trained against each other. Two optimizers for parts
of one model step after the same backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

MIN_COUNT = 4
"""Times that another optimizer stepped in turn with the primary one, after which it lasts."""

MAX_PRIMARY_STEPS = 16
"""Steps of the primary optimizer from one time to the next: of two networks, one may take several
steps for each step of the other."""


@dataclass
class Alternation:
    """Counts how often another optimizer stepped in turn with the primary one.

    >>> alternation = Alternation()
    >>> for _ in range(4):
    ...     alternation.add_other(has_own_pass=True)
    ...     alternation.add_primary(has_own_pass=True)
    >>> alternation.is_lasting
    True
    """

    count: int = 0
    primary_steps: int = 0
    """Steps of the primary optimizer since the last time."""
    has_other_step: bool = False
    """Whether another optimizer stepped after a pass of its own since the primary's last step."""

    @property
    def is_lasting(self) -> bool:
        """Whether the optimizers step in turn again and again."""
        return self.count >= MIN_COUNT

    def add_other(self, *, has_own_pass: bool) -> None:
        """Another optimizer stepped; `has_own_pass` as in `add_primary`."""
        self.has_other_step = self.has_other_step or has_own_pass

    def add_primary(self, *, has_own_pass: bool) -> None:
        """The primary optimizer stepped; a backward pass began since any optimizer's last step."""
        self.primary_steps += 1
        if self.has_other_step and has_own_pass:
            self.count, self.primary_steps = self.count + 1, 0
        elif self.primary_steps > MAX_PRIMARY_STEPS:
            self.count = 0
        self.has_other_step = False
