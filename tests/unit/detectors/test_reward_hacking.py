"""Tests of the detector reward_hacking."""

from math import nan
from random import Random

import pytest

from sentinel.detectors.reward_hacking import RewardHacking
from sentinel.model.finding import Severity
from sentinel.testing import first_finding, steps, update_detector

COUNT, ONSET = 200, 120


def run(kl=1.0, length=1.0, reward=0.0):
    """A healthy run whose KL, length and reward grow at these rates from the onset on."""
    rng = Random(4)
    since = [max(0, t - ONSET) for t in range(COUNT)]
    return list(
        steps(
            kl_ref=[0.05 * (t / COUNT) ** 2 * kl**s + 1e-4 for t, s in enumerate(since)],
            completion_length=[300.0 * length**s + rng.gauss(0, 5) for s in since],
            reward=[t / COUNT + reward * s + rng.gauss(0, 0.1) for t, s in enumerate(since)],
            learning_rate=[1e-6] * COUNT,
        )
    )


def test_a_reward_that_rises_with_kl_and_length_is_info():
    record, finding = first_finding(RewardHacking(), run(kl=1.1, length=1.02, reward=0.02))

    assert ONSET < record.step < ONSET + 60
    assert ONSET - 10 < finding.onset_step <= record.step
    assert finding.severity is None
    assert RewardHacking.severity is Severity.INFO


@pytest.mark.parametrize(
    "growth", [{}, {"kl": 1.1, "reward": 0.02}, {"length": 1.02, "reward": 0.02}]
)
def test_two_of_the_three_are_no_hacking(growth):
    assert first_finding(RewardHacking(), run(**growth)) == (None, None)


def test_kl_and_length_without_reward_are_no_hacking():
    assert first_finding(RewardHacking(), run(kl=1.1, length=1.02, reward=-0.02)) == (None, None)


def test_a_reward_that_rises_after_the_length_is_back_is_no_hacking():
    """The completions are long from step 120 to 150, and the reward rises at step 160."""
    rng = Random(4)
    far = [max(0, t - ONSET) for t in range(COUNT)]

    def records(rises_at):
        return steps(
            kl_ref=[0.05 * (t / COUNT) ** 2 * 1.1**s + 1e-4 for t, s in enumerate(far)],
            completion_length=[
                (600.0 if ONSET <= t < 150 else 300.0) + rng.gauss(0, 5) for t in range(COUNT)
            ],
            reward=[(1.0 if t >= rises_at else 0.0) + rng.gauss(0, 0.1) for t in range(COUNT)],
            learning_rate=[1e-6] * COUNT,
        )

    assert first_finding(RewardHacking(), records(rises_at=130))[1] is not None
    assert first_finding(RewardHacking(), records(rises_at=160)) == (None, None)


def test_ignores_non_finite_values():
    detector = RewardHacking()
    records = steps(reward=[nan] * 9, kl_ref=[1.0] * 9, completion_length=[1.0] * 9)

    assert [update_detector(detector, record) for record in records] == [None] * 9
