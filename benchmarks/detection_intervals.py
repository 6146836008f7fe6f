"""Wilson intervals of shares and of rates, as text."""

from __future__ import annotations

from math import sqrt

Z = 1.959964
"""Quantile of the normal distribution for an interval of 95 %."""


def wilson(count: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927); of nothing, from 0 to 1.

    >>> [round(limit, 3) for limit in wilson(9, 10)]
    [0.596, 0.982]
    """
    if not total:
        return 0.0, 1.0
    share, spread = count / total, Z * Z / total
    middle = (share + spread / 2) / (1 + spread)
    half = sqrt(share * (1 - share) * spread + spread * spread / 4) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def format_share(count: int, total: int) -> str:
    """A share in percent with its interval.

    >>> format_share(9, 10)
    '90 % (60-98)'
    """
    if not total:
        return "\N{EN DASH}"
    low, high = (100 * limit for limit in wilson(count, total))
    return f"{100 * count / total:.0f} % ({low:.0f}-{high:.0f})"


def format_rate(count: int, points: int) -> str:
    """Alarms per 10,000 points with their interval.

    >>> format_rate(4, 108_138)
    '0.37 (0.14-0.95)'
    """
    if not points:
        return "\N{EN DASH}"
    low, high = (1e4 * limit for limit in wilson(count, points))
    return f"{1e4 * count / points:.2f} ({low:.2f}-{high:.2f})"
