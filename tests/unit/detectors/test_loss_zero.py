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


def test_a_loss_that_was_zero_from_the_first_step_on_counts_too():
    record, finding = first_finding(LossZero(), steps(loss=[0.0] * 20))

    assert record.step == 16
    assert finding.evidence["last_nonzero_loss"] == "none"


def test_single_zeros_are_well():
    assert first_finding(LossZero(), steps(loss=[0.0] * 15 + [0.5] + [0.0] * 15)) == (None, None)


@pytest.mark.parametrize("last", [0.0001, -0.0001])
def test_a_loss_that_fell_to_where_its_log_rounds_it_away_is_worth_noting(last):
    _, finding = first_finding(LossZero(), steps(loss=[1.0, 0.01, last] + [0.0] * 20))

    assert finding.severity is Severity.INFO


def test_a_gradient_that_lives_beside_it_makes_it_worth_noting():
    _, finding = first_finding(LossZero(), steps(loss=[0.0] * 20, grad_norm=[0.5] * 20))

    assert finding.severity is Severity.INFO


def test_a_dead_gradient_beside_it_is_a_warning():
    _, finding = first_finding(LossZero(), steps(loss=[0.0] * 20, grad_norm=[0.0] * 20))

    assert finding.severity is None


def test_the_loss_of_a_policy_gradient_is_zero_to_first_order():
    assert first_finding(LossZero(), steps(loss=[0.0] * 40, reward=[1.0] * 40)) == (None, None)


def test_a_policy_gradient_algorithm_is_known_without_a_reward():
    facts = {"algorithm": "grpo"}
    outputs = [
        LossZero().update(Record("run", -1, s, 0.0, Event.STEP, {"loss": 0.0}, facts))
        for s in range(40)
    ]

    assert set(outputs) == {None}


def test_a_zero_beside_a_lost_gradient_norm_is_a_masked_nan_and_not_ours():
    assert first_finding(LossZero(), steps(loss=[0.0] * 40, grad_norm=[nan] * 40)) == (None, None)


def test_it_is_over_with_the_first_loss_that_is_not_zero():
    detector = LossZero()
    outputs = [update_detector(detector, record) for record in steps(loss=[0.0] * 20 + [1.0])]

    assert outputs[-1] == Clear()
