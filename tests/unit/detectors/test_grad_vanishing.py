"""Tests of the detector grad_vanishing."""

from math import exp
from random import Random

import pytest
from support.faulty_series import norm_run, records
from support.seeds import SEEDS

from sentinel.detectors.grad_vanishing import GradVanishing
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.testing import first_finding, steps, update_detector


def noisy(levels, seed=0):
    rng = Random(seed)
    return [level * exp(rng.gauss(0.0, 0.3)) for level in levels]


VANISHED = noisy([1.0] * 60 + [1e-6] * 40)


def test_the_sixteenth_norm_near_zero_is_a_warning():
    record, finding = first_finding(GradVanishing(), steps(grad_norm=VANISHED))

    assert record.step == 76
    assert finding.severity is None
    assert finding.onset_step == 61


def test_a_run_without_any_gradient_is_found():
    record, finding = first_finding(GradVanishing(), steps(grad_norm=[0.0] * 60))

    assert record.step == 32
    assert "since the first step" in finding.summary


def test_a_policy_that_collapsed_within_ten_steps_is_found():
    norms = [0.4, 0.5, 0.5, 0.7, 0.7, 1.0, 4.0, 17.0, 0.01, *noisy([1e-4] * 40)]
    record, _ = first_finding(GradVanishing(), steps(grad_norm=norms))

    assert record.step < 45


def test_norms_that_shrink_tenfold_are_clear():
    assert first_finding(GradVanishing(), steps(grad_norm=noisy([1.0] * 60 + [0.05] * 100))) == (
        None,
        None,
    )


def test_single_steps_without_a_learning_signal_are_clear():
    norms = ([0.0] * 10 + [1.0]) * 20

    assert first_finding(GradVanishing(), steps(grad_norm=norms)) == (None, None)


def test_memorized_data_are_info():
    loss = [2.0] * 60 + [0.001] * 40
    _, finding = first_finding(GradVanishing(), steps(grad_norm=VANISHED, loss=loss))

    assert finding.severity is Severity.INFO


def test_a_small_loss_is_no_excuse_in_a_policy_run():
    loss = [0.01] * 60 + [-0.001] * 40
    series = steps(grad_norm=VANISHED, loss=loss, reward=[0.5] * 100)

    assert first_finding(GradVanishing(), series)[1].severity is None


def test_a_loss_that_falls_with_its_gradient_is_info_also_beside_a_reward():
    """The training of the README: a fit without an error, whose loss is its reward."""
    losses = [4.0 * 0.7**step for step in range(400)] + [0.0] * 400
    rows = steps(
        grad_norm=[loss**0.5 for loss in losses], loss=losses, reward=[-loss for loss in losses]
    )
    detector = GradVanishing()
    outputs = [update_detector(detector, row) for row in rows]

    assert {each.severity for each in outputs if isinstance(each, Finding)} == {Severity.INFO}


@pytest.mark.parametrize(("signal", "value"), [("reward_std", 0.0), ("frac_zero_std", 1.0)])
def test_rewards_without_a_spread_make_it_info(signal, value):
    series = steps(grad_norm=VANISHED, **{signal: [0.5] * 60 + [value] * 40})

    assert first_finding(GradVanishing(), series)[1].severity is Severity.INFO


def test_it_lasts_until_a_norm_has_clearly_recovered():
    detector = GradVanishing()
    norms = [*VANISHED, 2e-3, 1.0, 1.0]
    outputs = [update_detector(detector, record) for record in steps(grad_norm=norms)]

    assert isinstance(outputs[-3], Finding)
    assert outputs[-2:] == [Clear(), Clear()]


def test_exact_zeros_are_found_after_few_norms():
    norms = [*noisy([1.0] * 12), *[0.0] * 30]
    record, finding = first_finding(GradVanishing(), steps(grad_norm=norms))

    assert record.step == 28
    assert finding.onset_step == 13
    assert "it was" in finding.summary


def test_zeros_after_a_few_norms_are_not_said_to_have_been_there_from_the_start():
    record, finding = first_finding(GradVanishing(), steps(grad_norm=[1.0, 1.2, *[0.0] * 40]))

    assert record.step == 34
    assert "it has been 0 since step 3." in finding.summary


@pytest.mark.seeded
@pytest.mark.parametrize("seed", SEEDS)
def test_healthy_runs_have_no_false_warning(seed):
    assert first_finding(GradVanishing(), records(norm_run(seed))) == (None, None)


def test_every_vanished_gradient_is_found():
    for seed in range(100, 115):
        run = norm_run(seed, "grad_vanishing")
        record, _ = first_finding(GradVanishing(), records(run))
        assert record is not None, seed
        assert run.onset <= record.step <= run.onset + 60 * run.every, seed
