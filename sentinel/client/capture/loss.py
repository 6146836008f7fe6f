"""Root loss: the sum of the scalars from which the backward passes of one step began.

With gradient accumulation a step has several; the optimizer sees the gradient of their sum. A sum
of device scalars stays on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sentinel.client.capture.scalars import Refused, number

RAW = "_sentinel_raw_loss"
"""Attribute by which a scaled loss remembers what it was before."""


@dataclass
class RootLoss:
    """The sum so far; None where a root could not be read."""

    total: Any = 0.0
    passes: int = 0
    scaled: bool = False
    """A GradScaler scaled a loss in this step: a root that does not remember it tells nothing."""
    over: bool = False
    """An optimizer stepped: the next backward pass begins a new sum."""
    before: tuple[Any, int] | None = None
    """The sum and its passes without the pass under way."""

    def add(self, roots: list[Any]) -> None:
        """A backward pass begins at these roots."""
        if self.over:
            self._begin()
        self.before = self.total, self.passes
        self.passes += 1
        try:
            for root in roots:
                found = self._read(root)
                # Never in place: a kept alias would change with what the trainer does to its loss.
                self.total = None if self.total is None else self.total + _beside(self.total, found)
        except Refused:
            self.total = None

    def take_back(self) -> None:
        """The pass under way, if it was heard, failed: with less memory left, say."""
        if self.before is not None:
            self.total, self.passes = self.before
            self.before = None

    def take(self) -> Any:
        """The sum, or None; the next step begins anew."""
        total = self.total if self.passes else None
        self._begin()
        return total

    def _begin(self) -> None:
        self.total, self.passes, self.over, self.scaled = 0.0, 0, False, False
        self.before = None

    def _read(self, root: Any) -> Any:
        raw = getattr(root, RAW, None)
        if raw is None and self.scaled:
            raise Refused("type")
        found = number(root if raw is None else raw)
        return found if type(found) is float else found.float()


def _beside(total: Any, found: Any) -> Any:
    """Where models train on several devices, so that the two can be added."""
    if type(total) is float or type(found) is float or total.device == found.device:
        return found
    return found.to(total.device, non_blocking=True)
