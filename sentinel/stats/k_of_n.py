"""Test whether half of the last few values are beyond a bound.

If they are not, neither is their median, and the values need not be sorted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import nan

from sentinel.stats.rolling_quantiles import median_of_sorted, sigma_of_sorted


@dataclass
class KOfN:
    """The last `size` values, compared with an upper bound, or a lower one if `below`.

    >>> high = KOfN(3)
    >>> [high.add(x, 2.0) for x in (3.0, 1.0, 3.0, 1.0, 1.0)]
    [False, False, True, False, False]
    """

    size: int
    below: bool = False
    is_full: bool = False
    values: deque[float] = field(default_factory=deque)
    _bound: float = nan
    _beyond_count: int = 0

    def add(self, value: float, bound: float) -> bool:
        """Add a finite value; whether the window is full and its median may be beyond `bound`.

        A value at the bound counts as beyond. If the bound changes, all values are compared again.
        """
        values, below = self.values, self.below
        values.append(value)
        if not self._beyond_count and self.is_full and bound == self._bound:
            # Most series are far from their bound, and stay there.
            values.popleft()
            if value > bound if below else value < bound:
                return False
            self._beyond_count = 1
            return self.size <= 2
        count = self._beyond_count
        if bound != self._bound:
            self._bound = bound
            count = sum([x <= bound if below else x >= bound for x in values])
        elif value <= bound if below else value >= bound:
            count += 1
        if self.is_full:
            oldest = values.popleft()
            if oldest <= bound if below else oldest >= bound:
                count -= 1
        else:
            self.is_full = len(values) == self.size
        self._beyond_count = count
        return self.is_full and 2 * count >= self.size

    @property
    def median(self) -> float:
        """Median of the values. Raises IndexError before the first."""
        return median_of_sorted(sorted(self.values))

    @property
    def sigma(self) -> float:
        """As in `RollingQuantiles`. Raises IndexError before the first value."""
        return sigma_of_sorted(sorted(self.values))
