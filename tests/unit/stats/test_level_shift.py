"""Departure and merit: tell a change that is paid for from one that is not."""

from random import Random

import pytest

from sentinel.stats.level_shift import LevelShift
from sentinel.stats.reward_gain import RewardGain


def shown(values, rewards, sign=1, factor=1.5):
    seen = LevelShift(sign, factor, 2.0)
    for step, (value, reward) in enumerate(zip(values, rewards, strict=True)):
        seen.add(value, reward, step)
    return seen


def noisy(levels, sigma=0.1, seed=1):
    rng = Random(seed)
    return [level + rng.gauss(0.0, sigma) for level in levels]


RISE = [100.0] * 60 + [100.0 * 1.1**t for t in range(20)]


def test_a_rise_without_reward_is_unpaid_and_dated():
    seen = shown(RISE, noisy([1.0] * 80))

    assert seen.has_left_recent_level
    assert seen.is_unrewarded
    assert 58 <= seen.onset <= 68
    assert seen.expected_level == pytest.approx(100.0)


def test_a_rise_with_reward_is_paid_for():
    seen = shown(RISE, noisy([1.0] * 60 + [1.0 + 0.2 * t for t in range(20)]))

    assert seen.has_left_recent_level
    assert not seen.is_unrewarded


def test_nothing_is_unpaid_where_no_reward_is_known():
    assert not shown(RISE, [None] * 80).is_unrewarded


def test_first_and_present_level_bear_wild_values():
    seen = shown([9e9, 10.0, 10.0, 10.0, 10.0] + [20.0, 9e9] * 2 + [20.0] * 8, [None] * 17)

    assert (seen.first_value, seen.first_level, seen.current_level) == (9e9, 10.0, 20.0)


def test_a_flat_reward_has_neither_gained_nor_lost():
    merit = RewardGain()
    for reward in noisy([1.0] * 200):
        merit.add(reward)

    assert not merit.has_lost
    assert merit.noise == pytest.approx(0.1, rel=0.3)


def test_a_reward_that_climbed_and_fell_has_lost():
    merit = RewardGain()
    for reward in noisy([0.0] * 20 + [2.0] * 40 + [0.5] * 20):
        merit.add(reward)

    assert merit.has_gained
    assert merit.has_lost


def test_what_leaves_too_slowly_for_its_recent_level_has_begun_half_way():
    seen = shown([100.0 * 2 ** (t / 200) for t in range(201)], [None] * 201)

    assert not seen.has_left_recent_level
    assert 100 <= seen.onset <= 108


def test_few_rewards_say_nothing():
    merit = RewardGain()
    for _ in range(7):
        merit.add(1.0)

    assert not merit.is_ready
    assert merit.noise == 0.0


def test_a_natural_course_is_no_departure_and_a_faster_one_is():
    """What falls with the length of the run falls fast when it is young."""
    natural = [10.0 / (1 + t) for t in range(200)]
    collapsing = natural[:150] + [natural[150] * 0.9**t for t in range(50)]

    assert not shown_with(natural).has_left_recent_level
    assert shown_with(collapsing).has_left_recent_level
    assert shown_with(natural).expected_level == pytest.approx(natural[-1], rel=0.2)


def shown_with(values):
    seen = LevelShift(-1, 1.5, 2.0, 1.0)
    for step, value in enumerate(values):
        seen.add(value, None, step)
    return seen
