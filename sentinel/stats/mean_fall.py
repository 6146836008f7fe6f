"""The change point at which the mean of values falls, with an interval and its significance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

MIN_SEGMENT_VALUES = 3
"""Smallest number of values on either side."""

MAX_CORRELATION = 0.9
"""Largest lag-one correlation that is assumed; few values show no more."""


@dataclass(frozen=True, slots=True)
class MeanFall:
    """A fall from the mean `before` to the mean `after`, which the last `low_count` values have.

    `sigma` is the standard deviation within the two parts;
    the fall itself counts as one deviation, so that it is not 0 where values repeat. `errors` is
    the fall in standard errors, which allow for the lag-one correlation within the parts.
    """

    low_count: int
    before: float
    after: float
    sigma: float
    errors: float


def find_fall(values: Sequence[float]) -> MeanFall | None:
    """The clearest fall of the mean; None if no cut has a lower mean after it.

    >>> fall = find_fall([1.0, 1.1, 0.9, 1.0, 0.1, 0.0, 0.1, 0.0])
    >>> fall.low_count, round(fall.before, 2), round(fall.after, 2)
    (4, 1.0, 0.05)
    """
    n, center = len(values), sum(values) / max(1, len(values))
    left = sum(values[: MIN_SEGMENT_VALUES - 1]) - (MIN_SEGMENT_VALUES - 1) * center
    gains: list[float] = []
    for cut in range(MIN_SEGMENT_VALUES, n - MIN_SEGMENT_VALUES + 1):
        left += values[cut - 1] - center
        # What the squared error loses by a cut.
        gains.append(left * left * n / (cut * (n - cut)) if left > 0.0 else 0.0)
    best_gain = max(gains, default=0.0)
    if best_gain <= 0.0:
        return None
    cut = gains.index(best_gain) + MIN_SEGMENT_VALUES
    before, after = sum(values[:cut]) / cut, sum(values[cut:]) / (n - cut)
    within = max(0.0, sum([(x - center) ** 2 for x in values]) - best_gain)
    sigma = sqrt((within + (before - after) ** 2) / (n - 2))
    if sigma == 0.0:
        return None
    steps = _squared_steps(values, cut)
    inflation = error_inflation(n, steps, within)
    return MeanFall(
        low_count=n - cut,
        before=before,
        after=after,
        sigma=sigma,
        errors=sqrt(best_gain / inflation) / sigma,
    )


def _squared_steps(values: Sequence[float], cut: int) -> float:
    """Sum of squared differences of neighbours, except at the cut."""
    steps = sum([(later - earlier) ** 2 for earlier, later in pairwise(values)])
    return max(0.0, steps - (values[cut] - values[cut - 1]) ** 2)


def error_inflation(n: int, steps: float, within: float) -> float:
    """Variance of a mean divided by that of independent values, by the lag-one correlation.

    `steps` is the sum of the squared differences of neighbours among `n` values, `within` that of
    their squared deviations. The correlation counts as far as it exceeds its standard error.
    """
    if within <= 0.0:
        return 1.0
    correlation = 1.0 - steps / (2.0 * within) - 1.0 / sqrt(n)
    correlation = min(max(0.0, correlation), MAX_CORRELATION)
    return (1.0 + correlation) / (1.0 - correlation)
