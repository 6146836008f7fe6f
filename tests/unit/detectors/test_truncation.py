"""Tests of the detector truncation."""

from random import Random

from sentinel.detectors.truncation import Truncation
from sentinel.model.finding import Clear, Severity
from sentinel.testing import first_finding, steps, update_detector


def noisy(levels, sigma=0.1, seed=0):
    rng = Random(seed)
    return [level + rng.gauss(0.0, sigma) for level in levels]


def highest_severity(cut, reward):
    detector = Truncation()
    seen = [update_detector(detector, r) for r in steps(truncated_fraction=cut, reward=reward)]
    severities = [x.severity or Truncation.severity for x in seen if hasattr(x, "severity")]
    return min(severities, key=lambda severity: severity.order, default=None)


def test_most_answers_cut_with_no_higher_reward_is_a_warning():
    cut = [0.6] * 10 + [0.95] * 20
    records = steps(truncated_fraction=cut, reward=noisy([0.5] * 30))
    record, finding = first_finding(Truncation(), records)

    assert record.step == 8
    assert finding.severity is None
    assert highest_severity(cut, noisy([0.5] * 30)) is Severity.WARNING


def test_truncation_since_the_start_is_info():
    assert highest_severity([0.95] * 60, noisy([0.5] * 60)) is Severity.INFO


def test_truncation_with_a_higher_reward_is_info():
    assert (
        highest_severity([0.1] * 20 + [0.95] * 40, noisy([0.0] * 20 + [3.0] * 40)) is Severity.INFO
    )


def test_a_fifth_is_clear():
    assert highest_severity(noisy([0.2] * 60, 0.02), noisy([0.5] * 60)) is None


def test_clears_when_completions_end_and_ignores_invalid_values():
    detector = Truncation()
    cut = [0.9] * 20 + [0.0] * 20 + [7.0]
    outputs = [update_detector(detector, record) for record in steps(truncated_fraction=cut)]

    assert outputs[-5:] == [Clear()] * 4 + [None]
