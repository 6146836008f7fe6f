"""The arithmetic of `CombineRule`: several ranks' values of one signal as one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import fsum, hypot, inf, isfinite
from operator import itemgetter

from sentinel.signals.catalogue import CombineRule


def safe_sum(values: Sequence[float]) -> float:
    """The exact sum; infinite or NaN if it is beyond the range of a float."""
    try:
        return fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


def sum_nonfinite(values: Sequence[float]) -> float:
    """The sum of the values that are not finite, so that no finite value hides a fault.

    >>> sum_nonfinite([1.0, inf, inf]), sum_nonfinite([-inf, 2.0]), sum_nonfinite([inf, -inf])
    (inf, -inf, nan)
    """
    return sum(value for value in values if not isfinite(value))


COMBINE_FUNCTIONS: Mapping[CombineRule, Callable[[Sequence[float]], float]] = {
    CombineRule.SUM: safe_sum,
    CombineRule.MAX: max,
    CombineRule.MIN: min,
    CombineRule.NORM: lambda values: hypot(*values),
    CombineRule.SAME: itemgetter(0),
}
"""Function of each rule but the mean, which needs weights."""


def combine_values(rule: CombineRule, values: Sequence[float], weights: Sequence[float]) -> float:
    """One value of at least one, by that rule; `sum_nonfinite` if any of them is not finite."""
    if not all(map(isfinite, values)):
        return sum_nonfinite(values)
    if rule is CombineRule.MEAN:
        return weighted_mean(values, weights)
    return COMBINE_FUNCTIONS[rule](values)


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """The weighted mean; the plain mean if the weights do not have a positive finite sum."""
    total = safe_sum(weights)
    if not 0.0 < total < inf:
        return safe_sum(values) / len(values)
    return safe_sum([v * w for v, w in zip(values, weights, strict=True)]) / total
