"""Curves in one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite, nan

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-=+*%#"
NOT_FINITE = "!"
"""NaN and infinity, which are no height."""

MAX_POINTS = 256
"""Points of a curve in memory; then two neighbours become one."""


def sparkline(values: Sequence[float | None], width: int, *, ascii_only: bool = False) -> str:
    """The curve in at most `width` characters, from the lowest to the highest finite value.

    A part without a value is a space.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8), sparkline([1.0, float("nan"), 1.0], 8)
    ('▁▂▃▄▅▆▇█', '▁!▁')
    """
    shown = [_reduce(part) for part in _parts(values, width)]
    finite = [value for value in shown if value is not None and isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    return "".join(_character(value, low, high, blocks) for value in shown)


def _parts(values: Sequence[float | None], width: int) -> list[Sequence[float | None]]:
    count = min(width, len(values))
    edges = [index * len(values) // count for index in range(count + 1)] if count else []
    return [values[first:last] for first, last in pairwise(edges)]


def _reduce(part: Sequence[float | None]) -> float | None:
    """The mean; not finite if one value is not, None without a value."""
    known = [value for value in part if value is not None]
    if any(not isfinite(value) for value in known):
        return nan
    # Halves, since the sum of two large numbers is infinite.
    return sum(value / len(known) for value in known) if known else None


def _character(value: float | None, low: float, high: float, blocks: str) -> str:
    if value is None:
        return " "
    if not isfinite(value):
        return NOT_FINITE
    span = high - low
    if span <= 0.0:
        return blocks[0]
    # An infinite span is that of numbers near the largest one.
    share = (value - low) / span if isfinite(span) else value / high / 2 + 0.5
    return blocks[min(int(max(share, 0.0) * len(blocks)), len(blocks) - 1)]


@dataclass
class Curve:
    """A series of any length in bounded memory: steps and the mean of the values around each."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    _stride: int = 1
    _count: int = 0

    def add(self, step: int, value: float) -> None:
        """Add a value; one that is not finite stays visible."""
        index = self._count % self._stride
        self._count += 1
        if index:
            last = self.values[-1]
            # The mean of a part with NaN is NaN.
            self.values[-1] = last + (value - last) / (index + 1) if isfinite(value) else nan
            return
        if len(self.values) >= MAX_POINTS:
            self._halve()
        self.steps.append(step)
        self.values.append(value)

    def _halve(self) -> None:
        pairs = zip(self.values[::2], self.values[1::2], strict=False)
        self.values = [first / 2 + second / 2 for first, second in pairs]
        self.steps = self.steps[::2][: len(self.values)]
        self._stride *= 2
