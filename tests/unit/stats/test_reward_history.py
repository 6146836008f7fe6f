"""Rewards by the level of another series."""

import pytest

from sentinel.stats.reward_history import MAX_BINS, RewardHistory


def history_of(levels, rewards):
    history = RewardHistory()
    for level, reward in zip(levels, rewards, strict=True):
        history.extend((level,), (reward,))
    return history


def test_the_reward_is_that_of_the_latest_block_at_the_level():
    history = history_of([1.0] * 16 + [2.0] * 8, [0.1] * 8 + [0.5] * 8 + [0.9] * 8)

    assert history.reward_at_level(1, 1.2) == pytest.approx(0.5)
    assert history.reward_at_level(1, 2.0) == pytest.approx(0.9)
    assert history.reward_at_level(-1, 1.8) == pytest.approx(0.9)


@pytest.mark.parametrize("count", [0, 4, 7])
def test_less_than_a_block_has_no_reward(count):
    assert history_of([1.0] * count, [0.5] * count).reward_at_level(1, 2.0) is None


def test_without_a_record_at_the_level_there_is_no_reward():
    assert history_of([3.0] * 80, [0.5] * 80).reward_at_level(1, 2.0) is None


def test_memory_is_bounded_and_reaches_back_to_the_beginning():
    levels = [at / 80 for at in range(80_000)]
    history = history_of(levels, levels)

    assert len(history._blocks) == MAX_BINS
    early = history_of(levels[:2_000], levels[:2_000])
    assert early.reward_at_level(1, 1.0) == pytest.approx(1.0, abs=0.1)
