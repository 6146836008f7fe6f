"""Drawdown: start, best and present level, by medians, and the noise they stand out of."""

from random import Random
from statistics import fmean

import pytest

from sentinel.stats.drawdown import Drawdown


def after(values):
    past = Drawdown()
    for value in values:
        past.add(value)
    return past


def test_knows_no_level_before_sixteen_values():
    past = after([1.0] * 15)

    assert past.first_level is None
    assert (past.gain, past.drop) == (0.0, 0.0)


def test_measures_what_was_gained_and_lost():
    past = after([0.0] * 16 + [4.0] * 16 + [1.0] * 8)

    assert (past.first_level, past.best_level, past.current_level, past.gain, past.drop) == (
        0.0,
        4.0,
        1.0,
        4.0,
        3.0,
    )


def test_single_values_reach_no_level():
    past = after(([1.0] * 15 + [100.0]) * 8)

    assert past.best_level == 1.0


@pytest.mark.parametrize("slope", [0.0, 0.03])
def test_the_noise_is_told_even_on_a_slope(slope):
    """Over thirty series; a single one knows its noise to a fifth."""
    told = []
    for seed in range(30):
        rng = Random(seed)
        told.append(after(slope * t + rng.gauss(0.0, 1.0) for t in range(200)).noise)

    assert fmean(told) == pytest.approx(1.0, rel=0.1)
