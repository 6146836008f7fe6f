"""A level departs from its trajectory or not, and the reward excuses it or not."""

from math import exp, log
from random import Random

import pytest

from sentinel.stats.baseline import Baseline, BaselineSettings, TrajectoryPrior
from sentinel.stats.level_departure import LevelDeparture
from sentinel.stats.reward_gain import RewardGain

SETTINGS = BaselineSettings(TrajectoryPrior(slope_sd=0.3, sigma=0.1, weight=8), fall_margin=0.1)


def departure_of(levels, rewards=None):
    rng, baseline, departure = Random(3), Baseline(SETTINGS), LevelDeparture(-1, 0.7, 6.0)
    gain = RewardGain()
    for step, level in enumerate(levels, start=1):
        value = level * exp(rng.gauss(0, 0.05))
        baseline.update(value, log(step), step)
        if rewards is not None:
            gain.add(rewards[step - 1] + rng.gauss(0, 0.02))
        departure.add(value, baseline, baseline.fall, gain)
    return departure, gain


FALL = [1.0] * 150 + [exp(-t / 20) for t in range(40)]


def test_a_steady_level_has_not_departed():
    departure, _ = departure_of([1.0] * 200)

    assert not departure.is_off_course
    assert departure.first_level == pytest.approx(1.0, abs=0.1)
    assert departure.onset_range is None


def test_a_fall_departs_with_its_onset_and_what_was_expected():
    departure, gain = departure_of(FALL)

    assert departure.is_off_course
    first, last = departure.onset_range
    assert 145 <= first <= last <= 175
    assert departure.expected_level == pytest.approx(1.0, abs=0.1)
    assert departure.evidence("x", gain)["x_median_of_8"] < 0.3


def test_the_reward_decides_whether_it_is_unrewarded():
    rising = [t / 50 for t in range(190)]

    for rewards, expected in (
        (None, False),
        ([0.5] * 190, True),
        (rising, False),
        ([min(x, 3.0) for x in rising], True),
    ):
        departure, gain = departure_of(FALL, rewards)
        assert departure.is_unrewarded(gain) is expected
