"""Test whether the median of the last few values is beyond a bound, and since when values are.

Only if half of them are can their median be, so that values need not be sorted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import nan

from sentinel.stats.rolling_quantiles import median_of_sorted, sigma_of_sorted


@dataclass(slots=True)
class KOfN:
    """The last `size` values, compared with a bound: beyond are those at it or above.

    If `below`, beyond are those below it. `onset` is the step of the first of the present, unbroken
    series of values beyond the bound; None if the last is not.

    >>> high = KOfN(3)
    >>> [high.add(x, 2.0, step) for step, x in enumerate((3.0, 1.0, 3.0, 1.0, 1.0))]
    [None, None, True, False, False]
    """

    size: int
    below: bool = False
    is_full: bool = False
    onset: int | None = None
    values: deque[float] = field(default_factory=deque)
    _bound: float = nan
    _beyond_count: int = 0

    def add(self, value: float, bound: float, step: int) -> bool | None:
        """Add a finite value; whether the median is beyond `bound`, None before the window is full.

        If the bound changes, all values are compared again.
        """
        values, below, leaves = self.values, self.below, False
        values.append(value)
        is_beyond = value < bound if below else value >= bound
        if self.is_full:
            oldest = values.popleft()
            if not (is_beyond or self._beyond_count) and bound == self._bound:
                self.onset = None
                return False
            leaves = oldest < bound if below else oldest >= bound
        else:
            self.is_full = len(values) == self.size
        self.onset = (step if self.onset is None else self.onset) if is_beyond else None
        if bound == self._bound:
            self._beyond_count += is_beyond - leaves
        else:
            self._bound = bound
            self._beyond_count = sum([x < bound if below else x >= bound for x in values])
        if not self.is_full:
            return None
        surplus = 2 * self._beyond_count - self.size
        return surplus > 0 or (surplus == 0 and (self.median < bound) == below)

    @property
    def median(self) -> float:
        """Median of the values. Raises IndexError before the first."""
        return median_of_sorted(sorted(self.values))

    @property
    def sigma(self) -> float:
        """As in `RollingQuantiles`. Raises IndexError before the first value."""
        return sigma_of_sorted(sorted(self.values))
