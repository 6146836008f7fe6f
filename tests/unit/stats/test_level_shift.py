"""Shifts from the first and the recent level, what noise explains, and the reward meanwhile."""

from random import Random

import numpy as np
import pytest

from sentinel.stats.level_shift import LevelShift
from sentinel.stats.reward_gain import RewardGain


def shift_of(values, rewards=None, sign=1, factor=None, sudden_share=0.0):
    shift = LevelShift(sign, 2.0, factor, sudden_share)
    for step, value in enumerate(values):
        shift.add(value, None if rewards is None else rewards[step], step)
    return shift


def noisy(levels, sigma=0.1, seed=1):
    rng = Random(seed)
    return [level + rng.gauss(0.0, sigma) for level in levels]


RISE = [100.0] * 60 + [100.0 * 1.1**t for t in range(20)]


def test_a_rise_without_reward_is_unrewarded_and_has_an_onset():
    shift = shift_of(RISE, noisy([1.0] * 80), factor=1.5)

    assert shift.has_left_recent_level
    assert shift.is_unrewarded()
    assert 58 <= shift.onset <= 68
    assert shift.expected_level == pytest.approx(100.0)


def test_a_rise_with_a_rising_reward_is_rewarded():
    rewards = noisy([1.0] * 60 + [1.0 + 0.2 * t for t in range(20)])
    shift = shift_of(RISE, rewards, factor=1.5)

    assert shift.has_left_recent_level
    assert not shift.is_unrewarded()


def test_without_a_known_reward_nothing_is_unrewarded():
    assert not shift_of(RISE, factor=1.5).is_unrewarded()


def test_first_and_current_level_ignore_outliers():
    shift = shift_of([9e9, 10.0, 10.0, 10.0, 10.0] + [20.0, 9e9] * 2 + [20.0] * 8)

    assert (shift.first_value, shift.first_level, shift.current_level) == (9e9, 10.0, 20.0)


def test_a_flat_reward_has_neither_gained_nor_lost():
    gain = RewardGain()
    for reward in noisy([1.0] * 200):
        gain.add(reward)

    assert not gain.has_lost
    assert gain.noise == pytest.approx(0.1, rel=0.3)


def test_a_reward_that_climbed_and_fell_has_lost():
    gain = RewardGain()
    for reward in noisy([0.0] * 20 + [2.0] * 40 + [0.5] * 20):
        gain.add(reward)

    assert gain.has_gained
    assert gain.has_lost


def test_a_slow_shift_begins_half_way_to_far():
    shift = shift_of([100.0 * 2 ** (t / 200) for t in range(201)], factor=1.5)

    assert not shift.has_left_recent_level
    assert 100 <= shift.onset <= 108


def test_few_rewards_give_no_result():
    gain = RewardGain()
    for _ in range(7):
        gain.add(1.0)

    assert not gain.is_ready
    assert gain.noise == 0.0


@pytest.mark.parametrize(
    ("values", "first"),
    [
        ([230.0, 240.0, 3.0, 3.0, 3.0, 3.0], 235.0),
        ([230.0, 3.0, 3.0, 3.0, 3.0, 3.0], 3.0),
        ([230.0, 240.0, 100.0, 90.0, 80.0, 3.0], 100.0),
    ],
)
def test_a_sudden_fall_ends_the_first_values(values, first):
    assert shift_of(values, sign=-1, sudden_share=0.1).first_level == first


def test_steady_growth_is_significant_and_no_noise():
    values = [100.0 * 2 ** (at / 60) for at in range(80)]

    assert shift_of(values).is_significant
    assert shift_of(values[:24], sign=-1).is_significant is False


@pytest.mark.parametrize("seed", range(4))
def test_noise_of_single_completions_is_not_significant(seed):
    noise = np.random.default_rng(seed).standard_normal(2_000)
    shift, count = LevelShift(1, 2.0), 0
    for step, value in enumerate(200 * np.exp(0.6 * noise)):
        shift.add(float(value), None, step)
        is_far = shift.half_way_step is not None and shift.current_level > 2 * shift.first_level
        count += is_far and shift.is_significant

    assert count <= 2


def test_a_reward_that_rises_with_the_series_is_no_shift_without_reward():
    values = [100.0 * 2 ** (at / 100) for at in range(200)]
    rising = [0.2 + 0.003 * at + 0.02 * (-1) ** at for at in range(200)]

    assert not shift_of(values, rewards=rising).is_unrewarded(100.0)
    assert shift_of(values, rewards=[0.2 + 0.02 * (-1) ** at for at in range(200)]).is_unrewarded()


def test_levels_whose_quotient_is_no_float_are_compared():
    fall = LevelShift(-1, 2.0)
    for step, value in enumerate([1e300] * 16 + [1e-300] * 16):
        fall.add(value, 0.1, step)

    assert (fall.half_way_step, fall.is_off_first_value) == (19, True)
    assert fall.is_unrewarded(1e300)
