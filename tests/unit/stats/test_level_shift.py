"""Level shifts with and without a rising reward."""

from random import Random

import pytest

from sentinel.stats.level_shift import LevelShift
from sentinel.stats.reward_gain import RewardGain


def shift_of(values, rewards, sign=1, factor=1.5):
    shift = LevelShift(sign, factor, 2.0)
    for step, (value, reward) in enumerate(zip(values, rewards, strict=True)):
        shift.add(value, reward, step)
    return shift


def noisy(levels, sigma=0.1, seed=1):
    rng = Random(seed)
    return [level + rng.gauss(0.0, sigma) for level in levels]


RISE = [100.0] * 60 + [100.0 * 1.1**t for t in range(20)]


def test_a_rise_without_reward_is_unrewarded_and_has_an_onset():
    shift = shift_of(RISE, noisy([1.0] * 80))

    assert shift.has_left_recent_level
    assert shift.is_unrewarded
    assert 58 <= shift.onset <= 68
    assert shift.expected_level == pytest.approx(100.0)


def test_a_rise_with_a_rising_reward_is_rewarded():
    shift = shift_of(RISE, noisy([1.0] * 60 + [1.0 + 0.2 * t for t in range(20)]))

    assert shift.has_left_recent_level
    assert not shift.is_unrewarded


def test_without_a_known_reward_nothing_is_unrewarded():
    assert not shift_of(RISE, [None] * 80).is_unrewarded


def test_first_and_current_level_ignore_outliers():
    shift = shift_of([9e9, 10.0, 10.0, 10.0, 10.0] + [20.0, 9e9] * 2 + [20.0] * 8, [None] * 17)

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
    shift = shift_of([100.0 * 2 ** (t / 200) for t in range(201)], [None] * 201)

    assert not shift.has_left_recent_level
    assert 100 <= shift.onset <= 108


def test_few_rewards_give_no_result():
    gain = RewardGain()
    for _ in range(7):
        gain.add(1.0)

    assert not gain.is_ready
    assert gain.noise == 0.0
