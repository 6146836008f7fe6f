"""Whether the weights were set between two optimizer steps, as for another fold over one model.

PyTorch counts the writes into a tensor. That of `.data` is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref


@dataclass
class WeightWrites:
    """Compares the writes into the first and the last weight of an optimizer around its steps."""

    weights: tuple[Callable[[], Any], ...] = ()
    steps: int = 0
    """Steps of the optimizer."""
    count: int = 0
    """Writes until the end of its last step."""
    is_usual: bool = False
    """Whether they were written between its last two steps: clipped, or perturbed."""

    def watch(self, parameters: Sequence[Any]) -> None:
        """Watch the parameters of an optimizer from its coming step on."""
        # A tensor of the inference mode has no count.
        ends = [each for each in (*parameters[:1], *parameters[-1:]) if not each.is_inference()]
        self.weights, self.steps, self.is_usual = tuple(map(ref, ends)), 0, False

    def before_step(self) -> None:
        """A step of the optimizer begins."""
        if self.steps:
            self.is_usual = self._count() != self.count

    def after_step(self) -> None:
        """A step of the optimizer ended."""
        self.steps, self.count = self.steps + 1, self._count()

    def has_new(self) -> bool:
        """Whether the weights were written since its last step, unlike before that step."""
        return bool(self.steps) and not self.is_usual and self._count() > self.count

    def _count(self) -> int:
        """Writes into the weights; fewer once one of them no longer exists."""
        count = 0
        for own in self.weights:
            if (weight := own()) is not None:
                count += weight._version  # noqa: SLF001
        return count
