"""Quantiles of Student's t distribution with a whole number of degrees of freedom.

Formula: with theta = atan(t / sqrt(n)), the probability A of a value between -t and t is
    n even:  sin(theta) (1 + 1/2 cos^2 + (1 3)/(2 4) cos^4 + ...), up to cos^(n-2)
    n odd:   2/pi (theta + sin(theta) (cos + 2/3 cos^3 + (2 4)/(3 5) cos^5 + ...)), up to cos^(n-2)

Source: Abramowitz & Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4.
"""

from __future__ import annotations

from functools import cache
from math import atan, cos, pi, sin, sqrt

_MAX_QUANTILE = 1e6
_HALVINGS = 80


def central_probability(t: float, degrees: int) -> float:
    """The probability of a value between -t and t.

    >>> round(central_probability(2.776, 4), 3)
    0.95
    """
    theta = atan(t / sqrt(degrees))
    is_odd = degrees % 2
    cosine, total = cos(theta), 0.0
    term = cosine if is_odd else 1.0
    for power in range(is_odd, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    if is_odd:
        return 2.0 / pi * (theta + sin(theta) * total)
    return sin(theta) * total


@cache
def two_sided_quantile(tail: float, degrees: int) -> float:
    """The value that a deviation of either sign exceeds with the probability `tail`.

    >>> [round(two_sided_quantile(0.05, degrees), 3) for degrees in (1, 4, 9)]
    [12.706, 2.776, 2.262]
    """
    low, high = 0.0, _MAX_QUANTILE
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if central_probability(middle, degrees) < 1.0 - tail:
            low = middle
        else:
            high = middle
    return high
