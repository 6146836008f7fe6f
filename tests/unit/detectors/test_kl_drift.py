"""Tests of the detector kl_drift."""

from dataclasses import replace

from sentinel.detectors.kl_drift import KlDrift
from sentinel.model.finding import Clear, Severity
from sentinel.signals.kl import SEQUENCE_SUM, KlKind, kl_kind_attribute
from sentinel.testing import first_finding, steps, update_detector

FAR = [0.5 * t / 300 for t in range(300)]


def test_a_slow_drift_is_info():
    record, finding = first_finding(KlDrift(), steps(kl_ref=FAR))

    assert 180 <= record.step <= 200
    assert finding.severity is None
    assert KlDrift.severity is Severity.INFO


def test_the_usual_final_kl_is_clear():
    assert first_finding(KlDrift(), steps(kl_ref=[0.2 * t / 300 for t in range(300)]))[0] is None


def test_a_distilled_policy_may_begin_at_a_high_kl():
    assert first_finding(KlDrift(), steps(kl_ref=[0.8] * 100)) == (None, None)


def test_a_sum_over_a_sequence_may_be_higher():
    attributes = {kl_kind_attribute("kl_ref"): KlKind("ref", "k1", SEQUENCE_SUM).serialize()}
    records = [replace(r, attributes=attributes) for r in steps(kl_ref=[10 * x for x in FAR])]

    assert first_finding(KlDrift(), records) == (None, None)


def test_it_clears_when_the_kl_is_back():
    detector = KlDrift()
    outputs = [update_detector(detector, r) for r in steps(kl_ref=FAR + [0.05] * 20)]

    assert outputs[-8:] == [Clear()] * 8
