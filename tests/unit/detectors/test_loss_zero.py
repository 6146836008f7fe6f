"""Tests of the detector loss_zero."""

from math import nan

import pytest

from sentinel.detectors.loss_zero import LossZero
from sentinel.model.finding import Clear, Severity
from sentinel.model.record import Event, Record
from sentinel.testing import first_finding, steps, update_detector


def test_sixteen_zeros_in_a_row_are_a_warning():
    record, finding = first_finding(LossZero(), steps(loss=[1.0] * 10 + [0.0] * 20))

    assert record.step == 26
    assert finding.severity is None
    assert finding.onset_step == 11


def test_zeros_since_the_first_step_are_found():
    record, finding = first_finding(LossZero(), steps(loss=[0.0] * 20))

    assert record.step == 16
    assert finding.evidence["last_nonzero_loss"] == "none"


def test_single_zeros_are_clear():
    assert first_finding(LossZero(), steps(loss=[0.0] * 15 + [0.5] + [0.0] * 15)) == (None, None)


@pytest.mark.parametrize("last", [0.0001, -0.0001])
def test_a_small_loss_rounded_to_zero_in_the_log_is_info(last):
    _, finding = first_finding(LossZero(), steps(loss=[1.0, 0.01, last] + [0.0] * 20))

    assert finding.severity is Severity.INFO


def test_a_nonzero_gradient_norm_makes_it_info():
    _, finding = first_finding(LossZero(), steps(loss=[0.0] * 20, grad_norm=[0.5] * 20))

    assert finding.severity is Severity.INFO


def test_a_zero_gradient_norm_makes_it_a_warning():
    _, finding = first_finding(LossZero(), steps(loss=[0.0] * 20, grad_norm=[0.0] * 20))

    assert finding.severity is None


def test_a_policy_gradient_loss_is_not_evaluated():
    assert first_finding(LossZero(), steps(loss=[0.0] * 40, reward=[1.0] * 40)) == (None, None)


def test_a_policy_gradient_algorithm_is_known_without_a_reward():
    attributes = {"algorithm": "grpo"}
    outputs = [
        LossZero().update(Record("run", -1, s, 0.0, Event.STEP, {"loss": 0.0}, attributes))
        for s in range(40)
    ]

    assert set(outputs) == {None}


def test_a_zero_beside_a_non_finite_gradient_norm_is_left_to_nan_or_inf():
    assert first_finding(LossZero(), steps(loss=[0.0] * 40, grad_norm=[nan] * 40)) == (None, None)


def test_it_clears_at_the_first_nonzero_loss():
    detector = LossZero()
    outputs = [update_detector(detector, record) for record in steps(loss=[0.0] * 20 + [1.0])]

    assert outputs[-1] == Clear()
