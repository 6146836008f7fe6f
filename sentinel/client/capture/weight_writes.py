"""Whether the weights were set between two optimizer steps, as for another fold over one model.

PyTorch counts the writes into a tensor. That of `.data` is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref


def _no_weight() -> None:
    """In place of a reference to a weight."""


@dataclass
class WeightWrites:
    """Compares the writes into the first and the last weight of an optimizer around its steps."""

    weights: tuple[Callable[[], Any], Callable[[], Any]] = (_no_weight, _no_weight)
    steps: int = 0
    """Steps of the optimizer."""
    count: int = 0
    """Writes until the end of its last step."""
    is_usual: bool = False
    """Whether they were written between its last two steps: clipped, or perturbed."""

    def watch(self, parameters: Sequence[Any]) -> None:
        """Watch the parameters of an optimizer from its coming step on."""
        # A tensor of the inference mode has no count.
        first, last = (
            _no_weight if not parameters or parameters[at].is_inference() else ref(parameters[at])
            for at in (0, -1)
        )
        self.weights, self.steps, self.is_usual = (first, last), 0, False

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
        first, last = self.weights
        first, last = first(), last()
        return (0 if first is None else first._version) + (0 if last is None else last._version)  # noqa: SLF001
