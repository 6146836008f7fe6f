"""Tests of the correlation of neighbours."""

from math import exp
from random import Random
from statistics import median

import pytest

from sentinel.stats.neighbour_correlation import neighbour_correlation


def ar1(seed, correlation, count=120, slope=0.0, jump=0.0):
    rng, value, values = Random(seed), 0.0, []
    for at in range(count):
        value = correlation * value + rng.gauss(0.0, 1.0)
        values.append(value + slope * at + jump * (at > count // 2))
    return values


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("shape", [{}, {"slope": 0.1}, {"jump": 5.0}])
def test_it_is_that_of_the_noise_whatever_the_trend(correlation, shape):
    found = median(neighbour_correlation(ar1(seed, correlation, **shape)) for seed in range(99))

    assert found == pytest.approx(correlation, abs=0.15)


def test_a_curve_is_no_correlated_noise():
    rng = Random(0)
    curve = [400.0 * (1.0 - exp(-at / 5)) + rng.gauss(0.0, 12.0) for at in range(20)]

    assert neighbour_correlation(curve) == 0.0


def test_equal_and_few_values_have_none():
    assert neighbour_correlation([1.0] * 10) == 0.0
    assert neighbour_correlation([1.0]) == 0.0
