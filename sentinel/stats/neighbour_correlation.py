"""The correlation of neighbours in a series that may have a trend.

Formula
    ratio = sum of squared second differences / sum of squared first differences. Of AR(1) noise
            with the lag-one correlation r it is 3 - r
    r     = 3 - ratio; 0 where the ratio is below 2 by two standard errors, which is a curve

Differences of neighbours hardly depend on a trend. They are clipped to three times their mean
size, so that a single jump of the level does not decide. A mean over the last k episodes that is
logged at every episode has an r of 1 - 1 / k.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from math import sqrt

MAX_CORRELATION = 0.98
"""Largest correlation that is assumed: that of a mean over the last 100 values."""

CLIPPED_SIZES = 3.0
"""Mean sizes to which a difference is clipped."""

RATIO_ERROR = 1.5
"""Standard error of the ratio of n values, times the root of n, for normal noise."""

CURVE_ERRORS = 2.0
"""Standard errors below 2 at which the ratio is that of a curve."""


def neighbour_correlation(values: Collection[float]) -> float:
    """The correlation, at least 0; 0 where nothing differs.

    >>> neighbour_correlation([1.0, -1.0] * 8)
    0.0
    >>> neighbour_correlation([(0.1 * n) ** 2 for n in range(100)])
    0.0
    """
    changes = [after - before for before, after in pairwise(values)]
    bound = CLIPPED_SIZES * sum(map(abs, changes)) / max(1, len(changes))
    if not bound:
        return 0.0
    changes = [min(max(-bound, change), bound) for change in changes]
    first = sum([change * change for change in changes])
    second = sum([(after - before) ** 2 for before, after in pairwise(changes)])
    if not first:
        # Squares of tiny changes underflow.
        return 0.0
    ratio = second / first
    if ratio < 2.0 - CURVE_ERRORS * RATIO_ERROR / sqrt(len(values)):
        return 0.0
    return min(max(0.0, 3.0 - ratio), MAX_CORRELATION)
