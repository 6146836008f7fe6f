"""Tests of the detector rollout_mismatch."""

from dataclasses import replace

from sentinel.detectors.rollout_mismatch import RolloutMismatch
from sentinel.model.finding import Clear, Severity
from sentinel.signals.kl import TOKEN_MEAN, KlKind, kl_kind_attribute
from sentinel.testing import first_finding, steps, update_detector


def test_a_moderate_mismatch_is_info():
    record, finding = first_finding(RolloutMismatch(), steps(kl_mismatch=[0.01] * 20 + [0.2] * 10))

    assert record.step == 24
    assert finding.severity is None
    assert finding.onset_step == 21
    assert finding.onset_range == (21, 21)
    assert RolloutMismatch.severity is Severity.INFO


def test_ten_times_as_much_and_a_skewed_ratio_are_warnings():
    _, far = first_finding(RolloutMismatch(), steps(kl_mismatch=[2.0] * 10))
    _, askew = first_finding(RolloutMismatch(), steps(importance_ratio_mean=[0.3] * 10))

    assert (far.severity, askew.severity) == (Severity.WARNING, Severity.WARNING)


def test_the_limit_of_an_absolute_difference_is_higher():
    attributes = {
        kl_kind_attribute("kl_mismatch"): KlKind(
            "mismatch", "abs", TOKEN_MEAN, signed=False
        ).serialize()
    }
    records = [replace(r, attributes=attributes) for r in steps(kl_mismatch=[0.2] * 30)]

    assert first_finding(RolloutMismatch(), records) == (None, None)


def test_single_outliers_are_ignored():
    records = steps(kl_mismatch=[0.01, 0.01, 9.0] * 20, importance_ratio_mean=[1.0, 1.0, 40.0] * 20)

    assert first_finding(RolloutMismatch(), records) == (None, None)


def test_a_record_without_either_signal_has_no_output():
    detector = RolloutMismatch()
    silent = [update_detector(detector, r) for r in steps(loss=[1.0] * 20)]
    matching = [update_detector(detector, r) for r in steps(kl_mismatch=[0.01] * 9)]

    assert silent == [None] * 20
    assert matching[-2:] == [Clear()] * 2


def test_the_onset_is_the_first_record_beyond_the_limit():
    series = steps(every=5, first=5, kl_mismatch=[0.01] * 12 + [0.2, 0.2, 0.05] + [0.3] * 8)
    _, finding = first_finding(RolloutMismatch(), series)

    assert finding.onset_step == 65
    assert finding.onset_range == (61, 65)


def test_a_single_record_beyond_the_limit_long_before_is_no_onset():
    series = steps(importance_ratio_mean=[1.0] * 10 + [3.0] + [1.0] * 3 + [3.0] * 8)
    _, finding = first_finding(RolloutMismatch(), series)

    assert finding.onset_step == 15
