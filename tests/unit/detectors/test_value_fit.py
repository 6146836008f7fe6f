"""Tests of the detector value_fit."""

from sentinel.detectors.value_fit import ValueFit
from sentinel.model.finding import Clear, Severity
from sentinel.testing import first_finding, steps, update_detector


def test_a_value_model_that_has_not_learned_is_info():
    record, finding = first_finding(ValueFit(), steps(explained_variance=[-0.4] * 80))

    assert record.step == 64
    assert finding.severity is None
    assert finding.onset_step == 1
    assert ValueFit.severity is Severity.INFO


def test_a_value_model_that_improves_is_clear():
    learning = [-3.0 + 4.0 * min(1.0, t / 40) for t in range(100)]

    assert first_finding(ValueFit(), steps(explained_variance=learning)) == (None, None)


def test_clears_and_ignores_invalid_values():
    detector = ValueFit()
    explained = [-0.4] * 80 + [0.5] * 40 + [7.0]
    outputs = [update_detector(detector, r) for r in steps(explained_variance=explained)]

    assert outputs[-5:] == [Clear()] * 4 + [None]
