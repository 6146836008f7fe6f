"""Exact limits of a Poisson mean, and the exposure that a budget needs."""

from __future__ import annotations

from math import ceil, inf

import pytest

from sentinel.stats.poisson_limits import needed_exposure, two_sided_limits, upper_limit


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # Garwood's table, by quantiles of the chi-squared distribution.
    [
        (0, 0.0, 3.6889),
        (1, 0.0253, 5.5716),
        (5, 1.6235, 11.6683),
        (100, 81.3640, 121.6268),
        (100_000, 99381.1527, 100621.7447),
    ],
)
def test_the_interval_is_that_of_the_table(count, low, high):
    assert two_sided_limits(count) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(("count", "limit"), [(0, 2.9957), (3, 7.7537), (1000, 1053.6031)])
def test_the_upper_limit_is_that_of_the_table(count, limit):
    assert upper_limit(count) == pytest.approx(limit, abs=1e-4)


@pytest.mark.parametrize(("count", "exposure"), [(0, 5.0), (1, 40.0), (3, 60.0)])
def test_the_needed_exposure_is_enough_at_the_present_rate(count, exposure):
    needed = needed_exposure(count, exposure, 0.1)

    assert upper_limit(ceil(count / exposure * needed)) / needed <= 0.1 + 1e-9


def test_a_rate_at_the_budget_never_is_within_it():
    assert needed_exposure(4, 40.0, 0.1) == inf
    assert needed_exposure(399, 4000.0, 0.1) == inf
