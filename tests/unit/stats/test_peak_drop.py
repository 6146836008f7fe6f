"""Current against highest level, jitter, and new floors."""

from random import Random

import pytest

from sentinel.stats.peak_drop import PeakDrop


def peak_drop_of(values):
    peak_drop = PeakDrop()
    for value in values:
        peak_drop.add(value)
    return peak_drop


def test_levels_are_medians():
    peak_drop = peak_drop_of([0.0] * 5 + [99.0] + [4.0] * 5 + [1.0] * 4)

    assert (peak_drop.first_level, peak_drop.best_level, peak_drop.current_level) == (0.0, 4.0, 1.0)
    assert (peak_drop.gain, peak_drop.drop) == (4.0, 3.0)


def test_three_low_values_do_not_lower_the_current_level():
    assert peak_drop_of([4.0] * 10 + [1.0] * 3).drop == 0.0


def test_a_slope_has_no_jitter():
    assert peak_drop_of([3.0 * t for t in range(100)]).jitter == pytest.approx(0.0)


def test_the_jitter_of_white_noise_is_its_deviation():
    rng = Random(0)

    assert peak_drop_of([rng.gauss(0.0, 2.0) for _ in range(400)]).jitter == pytest.approx(
        2.0, rel=0.3
    )


def test_a_reward_that_is_mostly_zero_has_jitter():
    assert peak_drop_of([1.0 if t % 4 == 0 else 0.0 for t in range(64)]).jitter > 0.4


def test_repeated_values_at_a_new_minimum_are_a_floor():
    assert peak_drop_of([-0.6, -0.7, -0.8, -0.9, -0.95] + [-1.0] * 8).is_on_new_floor


@pytest.mark.parametrize(
    "values",
    [
        [1.0] * 40,
        [0.0, 1.0, 0.0, 1.0, 0.0, 0.0] + [0.0] * 12,
        [-0.6, -0.7, -0.8, -0.9, -0.95] + [-1.0] * 7,
        [1.0] * 20 + [0.0] * 8 + [0.5],
    ],
)
def test_other_minima_are_no_new_floor(values):
    """Constant, frequent before, too short, and left again."""
    assert not peak_drop_of(values).is_on_new_floor


def test_an_empty_series_has_zeros():
    peak_drop = PeakDrop()

    assert (peak_drop.drop, peak_drop.gain, peak_drop.jitter, peak_drop.is_on_new_floor) == (
        0.0,
        0.0,
        0.0,
        False,
    )
