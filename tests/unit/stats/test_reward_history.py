"""Rewards by the level of another series."""

import pytest

from sentinel.stats.reward_history import MAX_BLOCKS, RewardHistory


def history_of(levels, rewards):
    history = RewardHistory()
    for level, reward in zip(levels, rewards, strict=True):
        history.add(level, reward)
    return history


def test_the_reward_is_that_of_the_latest_blocks_at_the_level():
    history = history_of([1.0] * 16 + [2.0] * 8, [0.1] * 8 + [0.5] * 8 + [0.9] * 8)

    assert history.reward_at_level(1, 1.2) == pytest.approx(0.5)
    assert history.reward_at_level(1, 2.0) == pytest.approx(0.9)
    assert history.reward_at_level(-1, 1.8) == pytest.approx(0.9)


@pytest.mark.parametrize("count", [0, 4, 7])
def test_fewer_than_two_blocks_have_no_reward(count):
    assert history_of([1.0] * count, [0.5] * count).reward_at_level(1, 2.0) is None


def test_without_a_record_at_the_level_there_is_no_reward():
    assert history_of([3.0] * 80, [0.5] * 80).reward_at_level(1, 2.0) is None


def test_memory_is_bounded_and_the_beginning_is_kept():
    history = history_of([1.0] * 2_000 + [5.0] * 8_000, [0.3] * 2_000 + [0.9] * 8_000)

    assert len(history._levels) <= MAX_BLOCKS
    assert history.reward_at_level(1, 2.0) == pytest.approx(0.3)
