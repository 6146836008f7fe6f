"""Limits of a rate of rare events from their number, as of false notifications.

Source
    F. Garwood, Fiducial limits for the Poisson distribution, Biometrika 28 (1936), 437-442: the
    exact limits, those means at which so few, or so many, events have the probability that is left.
    Without any event the upper limit at 95 % is 3.0, the rule of three: J. A. Hanley and
    A. Lippman-Hand, If nothing goes wrong, is everything all right?, JAMA 249 (1983), 1743-1745.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from math import exp, inf, lgamma, log, sqrt

MAX_EXPECTED = 300
"""Events above which no exposure is stated: so many are needed only if the rate is 10 % below the
budget or less."""
_BISECTIONS = 60


@lru_cache(maxsize=1024)
def upper_limit(count: int, confidence: float = 0.95) -> float:
    """The largest mean number of events that agrees with `count` of them, one-sided.

    >>> round(upper_limit(0), 2), round(upper_limit(3), 2)
    (3.0, 7.75)
    """
    least = max(0.0, count - _distance(count))
    high = count + _distance(count)
    return _bisect(lambda mean: _probability_up_to(count, mean) > 1 - confidence, least, high)


def two_sided_limits(count: int, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of mean numbers of events that agree with `count` of them.

    >>> [round(limit, 2) for limit in two_sided_limits(2)]
    [0.24, 7.22]
    """
    tail = (1 - confidence) / 2
    low = 0.0
    if count:
        least = max(0.0, count - _distance(count))
        low = _bisect(lambda mean: 1 - _probability_up_to(count - 1, mean) < tail, least, count)
    return low, upper_limit(count, 1 - tail)


def needed_exposure(count: int, exposure: float, budget: float, confidence: float = 0.95) -> float:
    """The exposure from which the upper limit of the rate is within `budget`, at the present rate.

    `budget` is in events per unit of `exposure`. Infinite if the present rate is not, or hardly,
    below it.

    >>> round(needed_exposure(0, 1.0, 0.1), 1), needed_exposure(2, 10.0, 0.1)
    (30.0, inf)
    """
    rate = count / exposure if exposure > 0 else (inf if count else 0.0)
    if rate >= budget:
        return inf

    def is_enough(expected: int) -> bool:
        return rate * upper_limit(expected, confidence) / budget <= expected

    expected = bisect_left(range(MAX_EXPECTED), True, lo=count, key=is_enough)
    return upper_limit(expected, confidence) / budget if expected < MAX_EXPECTED else inf


def _bisect(is_below: Callable[[float], bool], low: float, high: float) -> float:
    """The mean at which `is_below` changes from true to false."""
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return high


def _distance(count: float) -> float:
    """More than ten standard deviations of a Poisson number, at which its probability is nil."""
    return 10 + 10 * sqrt(count + 1)


def _probability_up_to(count: int, mean: float) -> float:
    """The probability of at most `count` events."""
    if mean <= 0:
        return 1.0
    first = max(0, int(mean - _distance(mean)))
    logs = [k * log(mean) - mean - lgamma(k + 1) for k in range(first, count + 1)]
    return sum(map(exp, logs))
