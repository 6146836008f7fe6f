"""Tests of the detector entropy_collapse."""

from dataclasses import replace
from math import exp
from random import Random

import pytest
from support.policy_runs import policy_run
from support.seeds import SEEDS

from sentinel.detectors.entropy_collapse import EntropyCollapse
from sentinel.model.finding import Finding, Severity
from sentinel.testing import first_finding, steps, update_detector


def noisy(levels, sigma=0.1, seed=0):
    rng = Random(seed)
    return [level + rng.gauss(0.0, sigma) for level in levels]


COLLAPSED = [0.8] * 60 + [0.8 * 0.85**t for t in range(20)] + [0.02] * 20


def test_a_fall_to_a_seventh_with_a_constant_reward_is_a_warning():
    records = steps(entropy=COLLAPSED, reward=noisy([0.5] * 100))
    record, finding = first_finding(EntropyCollapse(), records)

    assert 70 <= record.step <= 80
    assert finding.severity is Severity.WARNING
    assert finding.onset_step <= 72


def test_lower_entropy_with_a_rising_reward_is_info():
    spent = [0.5 * 0.99**t for t in range(250)]
    reward = noisy([t / 50 for t in range(250)])
    detector = EntropyCollapse()
    outputs = [update_detector(detector, r) for r in steps(entropy=spent, reward=reward)]
    found = [x for x in outputs if hasattr(x, "severity")]

    assert found
    assert {x.severity for x in found} == {None}
    assert EntropyCollapse.severity is Severity.INFO


def test_zero_entropy_without_a_higher_reward_is_critical():
    entropy = [0.2] * 8 + [0.0003] * 30
    reward = noisy([-0.7] * 8, 0.02) + [-1.0] * 30
    detector = EntropyCollapse()
    outputs = [update_detector(detector, r) for r in steps(entropy=entropy, reward=reward)]

    assert outputs[-1].severity is Severity.CRITICAL


def test_a_halved_entropy_in_the_first_steps_is_clear():
    entropy = [1.0 * 0.3 ** min(1.0, t / 60) for t in range(300)]

    assert first_finding(EntropyCollapse(), steps(entropy=entropy, reward=noisy([0.0] * 300))) == (
        None,
        None,
    )


def test_a_continuous_policy_is_not_evaluated():
    """Differential entropy has no lower bound: 0.07 is a narrow distribution, not certainty."""
    narrow = [1.4 * 0.95**t for t in range(100)]
    control = [
        replace(r, attributes={"entropy": "train/entropy_loss"}) for r in steps(entropy=narrow)
    ]
    detector = EntropyCollapse()

    assert [update_detector(detector, r) for r in control] == [None] * 100
    negative = [1.0 - 0.02 * t for t in range(200)]
    outputs = [update_detector(EntropyCollapse(), r) for r in steps(entropy=negative[50:])]
    assert not any(isinstance(output, Finding) for output in outputs)


def test_an_entropy_of_actions_that_settles_at_0_is_that_of_a_discrete_policy():
    fall = [7.5 * exp(-t / 8) + 0.03 for t in range(80)]
    passing = [7.5 - 0.05 * t for t in range(200)]
    reward = noisy([-100.0] * 200)

    def found(entropy):
        records = steps(entropy=entropy, reward=reward[: len(entropy)])
        key = {"entropy": "train/entropy_loss"}
        return first_finding(EntropyCollapse(), (replace(r, attributes=key) for r in records))

    record, finding = found(fall)
    assert 60 <= record.step <= 79
    assert finding.severity is Severity.WARNING
    assert finding.onset_step <= 20
    assert found(passing) == (None, None)


def test_one_negative_first_entropy_does_not_switch_it_off():
    """The majority decides whether the distribution is continuous."""
    records = steps(entropy=[-0.1, *COLLAPSED], reward=noisy([0.5] * 101))
    record, finding = first_finding(EntropyCollapse(), records)

    assert 65 <= record.step <= 82
    assert finding.severity is Severity.WARNING


def test_without_a_reward_it_is_info():
    _, finding = first_finding(EntropyCollapse(), steps(entropy=COLLAPSED[:72] + [0.05] * 9))

    assert finding.severity is None


@pytest.mark.seeded
def test_detection_rates_match_the_docstring_without_false_alarms():
    found = [policy_run(seed, "entropy_collapse", "severe") for seed in SEEDS]
    well = [policy_run(seed) for seed in SEEDS]

    late = [first_finding(EntropyCollapse(), run.records())[0] for run in found]
    assert all(r is not None and r.step > run.onset for r, run in zip(late, found, strict=True))
    assert [first_finding(EntropyCollapse(), run.records())[0] for run in well] == [None] * len(
        well
    )


def test_a_policy_that_is_almost_deterministic_from_the_start_has_little_to_lose():
    records = steps(entropy=[0.04] * 60 + [0.003] * 40, reward=noisy([0.5] * 100))
    _, finding = first_finding(EntropyCollapse(), records)

    assert finding.severity is None


def test_a_spread_of_actions_that_vanishes_without_a_reward_is_a_warning():
    """The entropy of a continuous policy has no zero, the spread of its actions has."""
    spreads, rewards = [1.0] * 60 + [0.97**at for at in range(100)], noisy([0.5] * 160)
    learned = noisy([0.02 * at for at in range(160)])

    def found(reward):
        records = steps(entropy=[-1.0] * 160, action_std=spreads, reward=reward)
        key = {"entropy": "train/entropy_loss"}
        return first_finding(EntropyCollapse(), (replace(r, attributes=key) for r in records))[1]

    assert found(rewards).severity is Severity.WARNING
    assert found(rewards).evidence["action_std_median_of_8"] < 0.15
    assert found(learned).severity is None


def test_an_entropy_beside_rewards_of_episodes_may_be_continuous():
    """Whatever its key, the entropy of a control task that is still above 0 may pass it."""
    entropy, reward = [24.0 - 0.2 * at for at in range(110)], noisy([1000.0] * 110)
    keys = {"entropy": "policy_entropy", "reward": "eprewmean"}
    records = [replace(r, attributes=keys) for r in steps(entropy=entropy, reward=reward)]

    assert first_finding(EntropyCollapse(), records) == (None, None)
