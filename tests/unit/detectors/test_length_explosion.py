"""Tests of the detector length_explosion."""

from math import nan
from random import Random

import pytest
from support.policy_runs import policy_run
from support.seeds import SEEDS

from sentinel.detectors.length_explosion import LengthExplosion
from sentinel.model.finding import Clear, Severity
from sentinel.testing import first_finding, steps, update_detector


def noisy(levels, sigma=0.1, seed=0):
    rng = Random(seed)
    return [level + rng.gauss(0.0, sigma) for level in levels]


GROWING = [200.0] * 40 + [200.0 * min(2.8, 1.05**t) for t in range(40)]


def highest_severity(length, reward):
    detector = LengthExplosion()
    seen = [update_detector(detector, r) for r in steps(completion_length=length, reward=reward)]
    severities = [x.severity or LengthExplosion.severity for x in seen if hasattr(x, "severity")]
    return min(severities, key=lambda s: s.order, default=None)


def test_growing_answers_with_a_constant_reward_are_a_warning():
    records = steps(completion_length=GROWING, reward=noisy([0.5] * 80))
    record, finding = first_finding(LengthExplosion(), records)

    assert 45 < record.step < 70
    assert finding.severity is Severity.WARNING
    assert finding.evidence["completion_length_tokens_at_start"] == 200.0
    assert finding.onset_step <= record.step


def test_completions_that_grow_with_the_reward_are_info():
    reward = noisy([0.0] * 40 + [0.1 * t for t in range(40)])

    assert highest_severity(GROWING, reward) is Severity.INFO


def test_tripling_within_the_recent_window_is_a_warning_at_any_reward():
    length = [200.0] * 80 + [200.0 * 1.2**t for t in range(30)]
    reward = noisy([0.0] * 40 + [0.1 * t for t in range(70)])

    assert highest_severity(length, reward) is Severity.WARNING


def test_growth_by_half_is_clear():
    assert highest_severity(noisy([200.0 + t for t in range(100)], 5.0), noisy([0.0] * 100)) is None


def test_without_a_reward_it_is_info():
    assert highest_severity(GROWING, [None] * 80) is Severity.INFO


def test_clears_when_answers_are_short_again():
    detector = LengthExplosion()
    records = steps(completion_length=GROWING + [200.0] * 20, reward=noisy([0.5] * 100))

    assert [update_detector(detector, record) for record in records][-10:] == [Clear()] * 10


def test_there_is_no_output_for_the_first_values_or_without_lengths():
    detector = LengthExplosion()
    outputs = [
        update_detector(detector, r) for r in steps(completion_length=[100.0] * 12 + [nan, 0.0])
    ]

    assert outputs == [None] * 9 + [Clear()] * 3 + [None] * 2


@pytest.mark.seeded
def test_detection_rates_match_the_docstring_without_false_warnings():
    sick = [policy_run(seed, "length_explosion", "severe") for seed in SEEDS]
    found = [first_finding(LengthExplosion(), run.records())[0] for run in sick]

    assert all(r is not None for r in found)
    for seed in SEEDS:
        series = policy_run(seed).series
        worst = highest_severity(series["completion_length"].tolist(), series["reward"].tolist())
        assert worst in {None, Severity.INFO}
