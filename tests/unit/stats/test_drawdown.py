"""First, best and current level by medians, and the noise."""

from random import Random
from statistics import fmean

import pytest

from sentinel.stats.drawdown import Drawdown


def drawdown_of(values):
    drawdown = Drawdown()
    for value in values:
        drawdown.add(value)
    return drawdown


def test_there_is_no_level_before_sixteen_values():
    drawdown = drawdown_of([1.0] * 15)

    assert drawdown.first_level is None
    assert (drawdown.gain, drawdown.drop) == (0.0, 0.0)


def test_gain_and_drop_are_differences_of_levels():
    drawdown = drawdown_of([0.0] * 16 + [4.0] * 16 + [1.0] * 8)

    assert (
        drawdown.first_level,
        drawdown.best_level,
        drawdown.current_level,
        drawdown.gain,
        drawdown.drop,
    ) == (
        0.0,
        4.0,
        1.0,
        4.0,
        3.0,
    )


def test_single_values_do_not_form_a_level():
    drawdown = drawdown_of(([1.0] * 15 + [100.0]) * 8)

    assert drawdown.best_level == 1.0


@pytest.mark.parametrize("slope", [0.0, 0.03])
def test_the_noise_is_estimated_even_on_a_slope(slope):
    """The mean over thirty series; a single estimate is accurate to a fifth."""
    estimates = []
    for seed in range(30):
        rng = Random(seed)
        estimates.append(drawdown_of(slope * t + rng.gauss(0.0, 1.0) for t in range(200)).noise)

    assert fmean(estimates) == pytest.approx(1.0, rel=0.1)
