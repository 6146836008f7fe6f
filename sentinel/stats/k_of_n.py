"""Majority: do half of the last few values lie beyond a bound?

Where they do not, their median does not either, and nobody has to sort them to know.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import nan

from sentinel.stats.rolling_quantiles import median_of_sorted, sigma_of_sorted


@dataclass
class KOfN:
    """The last `size` values, held against a bound above them, or `below` them.

    >>> high = Majority(3)
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
        """Take a finite value; whether there are enough, and their median may be beyond `bound`.

        What lies at the bound counts as beyond. Where the bound moves, all are held against it.
        """
        values, below = self.values, self.below
        values.append(value)
        if bound != self._bound:
            self._bound = bound
            self._beyond_count = sum([x <= bound if below else x >= bound for x in values])
        else:
            self._beyond_count += value <= bound if below else value >= bound
        if len(values) > self.size:
            oldest = values.popleft()
            self._beyond_count -= oldest <= bound if below else oldest >= bound
        self.is_full = len(values) == self.size
        return self.is_full and 2 * self._beyond_count >= self.size

    @property
    def median(self) -> float:
        """Middle of the values. Raises IndexError before there is one."""
        return median_of_sorted(sorted(self.values))

    @property
    def sigma(self) -> float:
        """As of `RollingQuantiles`. Raises IndexError before there is a value."""
        return sigma_of_sorted(sorted(self.values))
