"""Tests of the detector reward_stalled."""

from random import Random

from support.synthetic_runs import rl_run

from sentinel.detectors.reward_stalled import RewardStalled
from sentinel.model.finding import Clear, Severity
from sentinel.testing import first_finding, steps, update_detector


def outputs(reward):
    detector = RewardStalled()
    return [update_detector(detector, record) for record in steps(reward=reward)]


def warnings(reward):
    return [x for x in outputs(reward) if hasattr(x, "severity") and x.severity is None]


def noise(count, sigma=0.6, seed=3, slope=0.0):
    rng = Random(seed)
    return [-1.8 + slope * t / count + rng.gauss(0.0, sigma) for t in range(count)]


def test_a_reward_that_is_hardly_ever_earned_is_a_warning():
    rng = Random(2)
    reward = [0.0625 if rng.random() < 0.1 else 0.0 for _ in range(200)]
    record, finding = first_finding(RewardStalled(), steps(reward=reward))

    assert 96 <= record.step <= 200
    assert finding.severity is None
    assert finding.onset_step == 1
    assert RewardStalled.severity is Severity.WARNING


def test_a_reward_that_is_earned_more_and_more_often_is_clear():
    rng = Random(1)
    reward = [float(rng.random() < 0.1 + t / 500) for t in range(400)]

    assert not warnings(reward)


def test_a_thousand_points_that_moved_by_less_than_half_the_noise_are_a_stall():
    assert warnings(noise(1200))


def test_half_that_many_points_are_no_warning_yet():
    assert not warnings(noise(600))


def test_a_rise_by_more_than_the_noise_is_clear():
    assert not warnings(noise(2000, slope=1.2))


def test_clear_while_the_policy_learns():
    assert outputs([t / 100 for t in range(200)])[-1] == Clear()


def test_healthy_runs_have_no_false_warning():
    runs = [rl_run(seed).series["reward"].tolist() for seed in range(500, 520)]

    assert not any(warnings(reward) for reward in runs)
