"""Tests of the detector length_collapse."""

from random import Random

import pytest

from sentinel.detectors.length_collapse import LengthCollapse
from sentinel.model.finding import Clear, Severity
from sentinel.testing import first_finding, steps, update_detector


def noisy(levels, sigma=0.1, seed=0):
    rng = Random(seed)
    return [level + rng.gauss(0.0, sigma) for level in levels]


SHRUNK = [300.0] * 40 + [300.0 * 0.7**t for t in range(10)] + [8.0] * 20


def test_a_fall_is_a_warning_within_ten_points():
    records = steps(completion_length=SHRUNK, reward=noisy([0.5] * 70))
    record, finding = first_finding(LengthCollapse(), records)

    assert 42 <= record.step <= 52
    assert finding.severity is Severity.WARNING
    assert finding.evidence["completion_length_tokens_before"] == pytest.approx(300.0)


def test_shorter_answers_with_a_higher_reward_are_info():
    records = steps(completion_length=SHRUNK, reward=noisy([0.0] * 40 + [2.0] * 30))
    _, finding = first_finding(LengthCollapse(), records)

    assert finding.severity is None
    assert LengthCollapse.severity is Severity.INFO


def test_a_collapse_after_the_first_record_is_compared_with_it():
    """If every tenth step is logged, a fast collapse leaves one record from before it."""
    length = [53.0] + [2.5] * 30
    record, finding = first_finding(
        LengthCollapse(), steps(completion_length=length, reward=noisy([1.0] * 31))
    )

    assert (record.step, finding.onset_step) == (13, 1)
    assert finding.evidence["completion_length_tokens_before"] == 53.0


@pytest.mark.parametrize("last", [90.0, 290.0])
def test_a_third_of_the_length_is_no_collapse(last):
    length = [300.0] * 40 + [300.0 + (last - 300.0) * t / 200 for t in range(200)]
    records = steps(completion_length=length, reward=noisy([0.5] * 240))

    assert first_finding(LengthCollapse(), records) == (None, None)


def test_clears_when_answers_are_long_again():
    detector = LengthCollapse()
    length = SHRUNK + [300.0] * 20
    outputs = [
        update_detector(detector, r)
        for r in steps(completion_length=length, reward=noisy([0.5] * 90))
    ]

    assert outputs[-8:] == [Clear()] * 8
