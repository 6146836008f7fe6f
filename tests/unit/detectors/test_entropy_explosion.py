"""Tests of the detector entropy_explosion."""

from dataclasses import replace
from random import Random

from sentinel.detectors.entropy_explosion import EntropyExplosion
from sentinel.model.finding import Severity
from sentinel.testing import first_finding, steps, update_detector


def noisy(levels, sigma=0.1, seed=0):
    rng = Random(seed)
    return [level + rng.gauss(0.0, sigma) for level in levels]


RISEN = [0.3] * 50 + [0.3 * 1.07**t for t in range(30)]


def test_a_rise_with_a_falling_reward_is_a_warning():
    reward = noisy([0.5] * 50 + [0.5 - 0.05 * t for t in range(30)])
    record, finding = first_finding(EntropyExplosion(), steps(entropy=RISEN, reward=reward))

    assert 60 <= record.step <= 78
    assert finding.severity is Severity.WARNING


def test_a_rise_with_a_rising_reward_is_info():
    reward = noisy([0.0] * 50 + [0.1 * t for t in range(30)])
    detector = EntropyExplosion()
    outputs = [update_detector(detector, r) for r in steps(entropy=RISEN, reward=reward)]

    assert {x.severity for x in outputs if hasattr(x, "severity")} == {None}
    assert EntropyExplosion.severity is Severity.INFO


def test_a_slow_doubling_is_clear():
    entropy = [0.3 * 2 ** (t / 400) for t in range(400)]
    records = steps(entropy=entropy, reward=noisy([0.0] * 400))

    assert first_finding(EntropyExplosion(), records) == (None, None)


def test_a_continuous_policy_is_not_evaluated():
    records = [replace(r, attributes={"entropy": "losses/entropy"}) for r in steps(entropy=RISEN)]

    assert first_finding(EntropyExplosion(), records) == (None, None)


def test_a_policy_that_stays_almost_deterministic_does_not_explode():
    """An entropy of 0.01 that grows tenfold is still far from a uniform distribution."""
    entropy, reward = [0.01] * 60 + [0.1] * 60, [0.5] * 120

    assert first_finding(EntropyExplosion(), steps(entropy=entropy, reward=reward)) == (None, None)


def gaussian_policy(spreads, reward):
    """Records of a continuous policy, whose entropy has no zero."""
    entropy = [-1.0 - 0.01 * at for at in range(len(spreads))]
    records = steps(entropy=entropy, action_std=spreads, reward=noisy(reward))
    return [replace(each, attributes={"entropy": "entropy_loss"}) for each in records]


def test_a_spread_of_actions_that_grows_without_a_reward_is_a_warning():
    spreads, learned = [1.0] * 60 + [1.03**at for at in range(60)], [0.02 * at for at in range(120)]
    _, finding = first_finding(EntropyExplosion(), gaussian_policy(spreads, [0.5] * 120))
    _, rewarded = first_finding(EntropyExplosion(), gaussian_policy(spreads, learned))

    assert finding.severity is Severity.WARNING
    assert finding.summary.startswith("Spread of the actions rose from 1 to 2")
    assert rewarded.severity is None
