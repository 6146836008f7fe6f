"""Tests of the detector reward_stalled."""

from random import Random

from support.synthetic_runs import rl_run

from sentinel.detectors.reward_stalled import RewardStalled
from sentinel.model.finding import Clear, Severity
from sentinel.testing import first_finding, steps, update_detector


def outputs(reward):
    detector = RewardStalled()
    return [update_detector(detector, record) for record in steps(reward=reward)]


def loud(reward):
    return [x for x in outputs(reward) if hasattr(x, "severity") and x.severity is None]


def noise(count, sigma=0.6, seed=3, slope=0.0):
    rng = Random(seed)
    return [-1.8 + slope * t / count + rng.gauss(0.0, sigma) for t in range(count)]


def test_warns_of_a_reward_that_is_hardly_ever_earned():
    rng = Random(2)
    reward = [0.0625 if rng.random() < 0.1 else 0.0 for _ in range(200)]
    record, finding = first_finding(RewardStalled(), steps(reward=reward))

    assert 96 <= record.step <= 200
    assert finding.severity is None
    assert finding.onset_step == 1
    assert RewardStalled.severity is Severity.WARNING


def test_a_reward_that_is_earned_more_and_more_often_is_learnt():
    rng = Random(1)
    reward = [float(rng.random() < 0.1 + t / 500) for t in range(400)]

    assert not loud(reward)


def test_a_thousand_points_that_moved_by_less_than_half_the_noise_are_a_stall():
    assert loud(noise(1200))


def test_half_that_many_are_not_yet_enough_to_wake_anybody():
    assert not loud(noise(600))


def test_a_reward_that_gains_its_own_noise_is_learnt():
    assert not loud(noise(2000, slope=1.2))


def test_clear_while_the_policy_learns():
    assert outputs([t / 100 for t in range(200)])[-1] == Clear()


def test_healthy_runs_have_no_false_warning():
    runs = [rl_run(seed).series["reward"].tolist() for seed in range(500, 520)]

    assert not any(loud(reward) for reward in runs)
