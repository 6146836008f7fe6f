"""Summit: present against highest level, and a floor that is new."""

from random import Random

import pytest

from sentinel.stats.peak_drop import PeakDrop


def shown(values):
    seen = PeakDrop()
    for value in values:
        seen.add(value)
    return seen


def test_levels_are_medians():
    seen = shown([0.0] * 5 + [99.0] + [4.0] * 5 + [1.0] * 4)

    assert (seen.first_level, seen.peak_level, seen.current_level) == (0.0, 4.0, 1.0)
    assert (seen.gain, seen.drop) == (4.0, 3.0)


def test_three_low_values_do_not_lower_the_present_level():
    assert shown([4.0] * 10 + [1.0] * 3).drop == 0.0


def test_a_slope_is_no_jitter():
    assert shown([3.0 * t for t in range(100)]).jitter == pytest.approx(0.0)


def test_white_noise_jitters_by_its_deviation():
    rng = Random(0)

    assert shown([rng.gauss(0.0, 2.0) for _ in range(400)]).jitter == pytest.approx(2.0, rel=0.3)


def test_a_reward_that_is_mostly_nothing_jitters_all_the_same():
    assert shown([1.0 if t % 4 == 0 else 0.0 for t in range(64)]).jitter > 0.4


def test_lying_on_a_new_lowest_number_is_a_floor():
    assert shown([-0.6, -0.7, -0.8, -0.9, -0.95] + [-1.0] * 8).is_on_new_floor


@pytest.mark.parametrize(
    "values",
    [
        [1.0] * 40,
        [0.0, 1.0, 0.0, 1.0, 0.0, 0.0] + [0.0] * 12,
        [-0.6, -0.7, -0.8, -0.9, -0.95] + [-1.0] * 7,
        [1.0] * 20 + [0.0] * 8 + [0.5],
    ],
)
def test_no_floor(values):
    """Always there, usual before, too short, and left again."""
    assert not shown(values).is_on_new_floor


def test_nothing_is_known_of_nothing():
    seen = PeakDrop()

    assert (seen.drop, seen.gain, seen.jitter, seen.is_on_new_floor) == (0.0, 0.0, 0.0, False)
