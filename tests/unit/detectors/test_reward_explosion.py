"""Tests of the detector reward_explosion."""

import pytest

from sentinel.detectors.reward_explosion import RewardExplosion
from sentinel.testing import first_finding, steps

GROWTH = [0.6 * 500 ** min(1.0, max(0.0, (n - 100) / 60)) for n in range(200)]


def test_a_reward_that_grows_in_the_training_of_a_text_policy_is_found():
    record, finding = first_finding(
        RewardExplosion(), steps(reward=GROWTH, completion_length=[200.0] * 200)
    )

    assert 120 < record.step < 160
    assert 100 <= finding.onset_step <= record.step


def test_a_game_that_is_learned_is_clear():
    assert first_finding(RewardExplosion(), steps(reward=GROWTH)) == (None, None)


def test_a_jump_is_found_in_any_run_at_its_fourth_reward():
    record, finding = first_finding(RewardExplosion(), steps(reward=[0.6] * 50 + [50.0] * 8))

    assert record.step == 54
    assert finding.onset_step == 51


@pytest.mark.parametrize(
    "rewards",
    [
        [0.6] * 50 + [50.0, 0.6] * 20,
        [0.6] * 50 + [9.9] * 50,
        [-80.0] * 50 + [90.0] * 50,
        [0.0, 100.0, 0.0, 0.0] + [100.0] * 20,
        [0.6] * 50 + [-50.0] * 50,
    ],
    ids=["single samples", "below ten times", "negative before", "sparse", "a fall"],
)
def test_other_changes_are_clear(rewards):
    assert first_finding(RewardExplosion(), steps(reward=rewards)) == (None, None)


def test_a_first_reward_of_0_is_no_usual_size():
    rewards = [0.0, 12.0, 13.0, 21.0, 20.0, 22.0, 25.0, 30.0]

    assert first_finding(RewardExplosion(), steps(reward=rewards, kl_ref=[0.1] * 8)) == (None, None)
    later = steps(reward=[0.5] * 4 + rewards[1:], kl_ref=[0.1] * 11)
    assert first_finding(RewardExplosion(), later)[1] is not None
