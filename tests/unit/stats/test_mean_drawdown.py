"""Tests of the drawdown of the mean."""

from random import Random

import pytest

from sentinel.stats.mean_drawdown import MeanDrawdown


def falls(values):
    drawdown = MeanDrawdown()
    for value in values:
        drawdown.add(value)
    return {fall.scale: fall for fall in drawdown.falls()}


def noisy(levels, sigma=0.1, seed=0):
    rng = Random(seed)
    return [level + rng.gauss(0.0, sigma) for level in levels]


def test_a_fall_is_significant_at_the_scales_that_it_fills():
    found = falls(noisy([n / 100 for n in range(100)] + [0.2] * 16))

    assert found[4].errors > 5.0
    assert found[16].errors > 5.0
    assert found[16].best == pytest.approx(0.9, abs=0.1)
    assert found[16].current == pytest.approx(0.2, abs=0.1)
    assert found[16].gain == pytest.approx(0.9, abs=0.1)


def test_there_is_no_fall_while_a_series_rises():
    assert falls([float(n) for n in range(200)]) == {}


def test_without_a_gain_the_fall_is_below_the_mean():
    found = falls(noisy([1.0] * 200 + [0.5] * 16))

    assert found[16].gain == 0.0
    assert found[16].errors > 5.0


def test_the_noise_of_a_coin_is_not_0():
    rng = Random(3)
    coin = [float(rng.random() < 0.5) for _ in range(400)]

    assert all(fall.errors < 4.5 for fall in falls([*coin, *[0.0] * 8]).values())


def test_a_value_that_is_nearly_constant_may_change_a_few_times():
    found = falls([1.0] * 200 + [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0])

    assert all(fall.errors < 1.5 * 4.5 for fall in found.values())


def test_a_frozen_fall_does_not_become_noise():
    drawdown = MeanDrawdown()
    for value in noisy([n / 100 for n in range(100)] + [0.2] * 8):
        drawdown.add(value)
    drawdown.is_frozen = True
    for value in noisy([0.2] * 300, seed=1):
        drawdown.add(value)

    assert {fall.scale: fall for fall in drawdown.falls()}[64].errors > 20.0
