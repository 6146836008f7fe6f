"""The newest points of several signals. Rows are split into signals only when points are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from operator import itemgetter

from sentinel.model.diagnosis import SignalRange

MAX_UNREAD_ROWS = 64
"""Rows that are kept before they are split. Splitting many at once takes far less time."""


@dataclass(slots=True)
class RecentPoints:
    """Steps and values of the newest `size` points of each signal, and the range of all points.

    >>> points = RecentPoints(2)
    >>> for step in range(3):
    ...     points.add(step, {"loss": step / 2}, ("loss",))
    >>> points.read()["loss"]
    deque([(1, 0.5), (2, 1.0)], maxlen=2)
    """

    size: int
    is_finite: bool = False
    """Whether values that are not finite are left out."""
    _by_signal: dict[str, deque[tuple[int, float]]] = field(default_factory=dict)
    _ranges: dict[str, SignalRange] = field(default_factory=dict)
    _names: tuple[str, ...] = ()
    _steps: list[int] = field(default_factory=list)
    _rows: list[Mapping[str, float]] = field(default_factory=list)

    def add(self, step: int, values: Mapping[str, float], names: tuple[str, ...]) -> None:
        """Add the values that have these `names`. `values` must not change afterwards."""
        if names != self._names or len(self._rows) >= MAX_UNREAD_ROWS:
            self.read()
            self._names = names
        self._steps.append(step)
        self._rows.append(values)

    def read(self) -> Mapping[str, deque[tuple[int, float]]]:
        """The points by signal, the oldest first."""
        steps, rows, by_signal = self._steps, self._rows, self._by_signal
        if rows and (names := self._names):
            # The first name twice: of a single one, a row would be no tuple.
            columns = zip(*map(itemgetter(*names, names[0]), rows), strict=True)
            for name, column in zip(names, columns, strict=False):
                values: Sequence[float] = column
                pairs: Iterable[tuple[int, float]] = zip(steps, values, strict=True)
                # The sum is finite only if all values are.
                if self.is_finite and not isfinite(sum(values)):
                    pairs = [each for each in pairs if isfinite(each[1])]
                    values = [value for _, value in pairs]
                by_signal.setdefault(name, deque(maxlen=self.size)).extend(pairs)
                if self.is_finite and values:
                    self._ranges[name] = _extend(self._ranges.get(name), steps[0], values)
        steps.clear()
        rows.clear()
        return by_signal

    def ranges(self) -> Mapping[str, SignalRange]:
        """The range of all points by signal, if they are finite."""
        self.read()
        return self._ranges

    def clear(self) -> None:
        """Forget all points."""
        self._by_signal.clear()
        self._ranges.clear()
        self._steps.clear()
        self._rows.clear()


def _extend(known: SignalRange | None, step: int, values: Sequence[float]) -> SignalRange:
    """The range of the known values and of further ones, the first of them at `step`."""
    count, lowest, highest = len(values), min(values), max(values)
    zeros = values.count(0.0) if lowest <= 0.0 <= highest else 0
    if known is None:
        return SignalRange(step, count, zeros, lowest, highest)
    return SignalRange(
        known.first_step,
        known.count + count,
        known.zeros + zeros,
        min(known.lowest, lowest),
        max(known.highest, highest),
    )
