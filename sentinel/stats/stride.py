"""Stride: how far one counter moves while another moves by one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass
class Stride:
    """Keeps the last `size` pairs of two counters and the stride over all of them.

    >>> stride = Stride(size=3)
    >>> for optimizer_steps in range(5):
    ...     stride.add(2.0 * optimizer_steps, float(optimizer_steps))
    >>> stride.value
    2.0
    """

    size: int
    _pairs: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, counter: float, per: float) -> None:
        """Take both counters; a counter that went back starts anew."""
        if self._pairs and (counter < self._pairs[-1][0] or per < self._pairs[-1][1]):
            self._pairs.clear()
        self._pairs.append((counter, per))
        if len(self._pairs) > self.size:
            self._pairs.popleft()

    @property
    def value(self) -> float | None:
        """None until `size` pairs are known, or while `per` stands still."""
        if len(self._pairs) < self.size:
            return None
        (counter, per), (now, per_now) = self._pairs[0], self._pairs[-1]
        return None if per_now == per else (now - counter) / (per_now - per)
