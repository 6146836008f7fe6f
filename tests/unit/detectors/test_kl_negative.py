"""Tests of the detector kl_negative."""

from dataclasses import replace
from math import nan
from random import Random

from sentinel.detectors.kl_negative import KlNegative
from sentinel.model.finding import Clear
from sentinel.signals.kl import SEQUENCE_SUM, KlKind, kl_kind_attribute
from sentinel.testing import first_finding, steps, update_detector


def noisy(level, sigma, count=100):
    rng = Random(2)
    return [level + rng.gauss(0.0, sigma) for _ in range(count)]


def per_sequence(values):
    attributes = KlKind("ref", "k1", SEQUENCE_SUM).serialize()
    return [
        replace(r, attributes={kl_kind_attribute("kl_ref"): attributes})
        for r in steps(kl_ref=values)
    ]


def test_a_kl_that_stays_negative_is_a_warning():
    record, finding = first_finding(KlNegative(), steps(kl_ref=[0.01] * 20 + [-0.2] * 40))

    assert 36 <= record.step <= 38
    assert finding.onset_step == 21


def test_noise_around_zero_is_clear():
    assert first_finding(KlNegative(), steps(kl_ref=noisy(0.0, 0.1))) == (None, None)


def test_a_sum_over_a_sequence_may_be_lower():
    assert first_finding(KlNegative(), per_sequence(noisy(-0.6, 0.3))) == (None, None)
    assert first_finding(KlNegative(), per_sequence(noisy(-3.0, 0.3)))[0] is not None


def test_clears_when_it_is_positive_again():
    detector = KlNegative()
    outputs = [update_detector(detector, r) for r in steps(kl_ref=[-0.2] * 40 + [nan] + [0.1] * 40)]

    assert outputs[40] is None
    assert outputs[-10:] == [Clear()] * 10
