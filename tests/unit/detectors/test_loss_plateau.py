"""Tests of the detector loss_plateau."""

from dataclasses import replace
from math import exp
from random import Random

import pytest
from support.notable_findings import first_notable
from support.seeds import SEEDS
from support.synthetic_runs import sft_run

from sentinel.detectors.loss_plateau import LossPlateau
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.record import Event
from sentinel.testing import event, first_finding, steps, update_detector


def noisy(levels, sigma=0.02, seed=0):
    rng = Random(seed)
    return [level * exp(rng.gauss(0.0, sigma)) for level in levels]


FALLING = [3.0 * (1 + t / 20) ** -0.4 for t in range(300)]
STALLED = FALLING + [FALLING[-1]] * 500


def detect(loss, rate):
    return first_finding(LossPlateau(), steps(loss=loss, learning_rate=rate))


def test_a_stall_at_the_best_level_may_be_converged_and_is_info():
    record, finding = detect(noisy(STALLED), [1e-5] * 800)

    assert record.step > 300
    assert finding.severity is Severity.INFO
    assert 250 <= finding.onset_step <= record.step
    assert abs(finding.evidence["loss_change_relative"]) < 0.01


STUCK_HIGH = FALLING + [2.0] * 500
"""The best level is 1."""


def test_a_stall_far_above_the_best_level_is_a_warning():
    _, finding = first_notable(LossPlateau(), steps(loss=noisy(STUCK_HIGH)))

    assert "it was 1.0" in finding.summary


@pytest.mark.parametrize("planned", [2000, 810])
def test_a_warning_needs_a_fifth_of_the_planned_steps_to_go(planned):
    records = steps(loss=noisy(STUCK_HIGH))
    early = [record for record in records if record.step > 0.8 * 810 or planned == 2000]
    early.insert(0, event(Event.START, 0, max_steps=planned))

    assert (first_notable(LossPlateau(), early)[0] is not None) == (planned == 2000)


def test_a_loss_over_pairs_that_stays_at_ln_2_is_a_warning():
    loss = noisy([0.76] * 40 + [0.69] * 600, 0.03)

    _, finding = first_notable(LossPlateau(), steps(loss=loss, preference_accuracy=[0.5] * 640))
    assert "ln 2" in finding.summary
    assert first_notable(LossPlateau(), steps(loss=loss)) == (None, None)

    metadata = replace(event(Event.METADATA, 0), attributes={"algorithm": "dpo"})
    _, finding = first_notable(LossPlateau(), [metadata, *steps(loss=loss)])
    assert "ln 2" in finding.summary


def test_two_networks_trained_against_each_other_are_not_evaluated():
    loss = noisy([1.386] * 800)

    assert first_finding(LossPlateau(), steps(loss=loss, loss_G=loss, loss_D=loss)) == (None, None)


def test_a_loss_that_still_falls_under_a_decaying_rate_has_not_stopped():
    """It falls by 0.7 % over the shortest window, less than `improvement`, and that is shown."""
    loss = noisy([2.0 * exp(-0.0001 * t) for t in range(104)], 0.002)

    assert first_finding(LossPlateau(), steps(loss=loss)) == (None, None)


def test_a_stall_at_the_end_of_a_schedule_is_info():
    _, finding = detect(noisy(STALLED), [1e-5] * 200 + [1e-7] * 600)

    assert finding.severity is Severity.INFO


def test_a_loss_that_never_moved_is_a_warning_at_any_learning_rate():
    _, finding = first_finding(LossPlateau(), steps(loss=noisy([0.693] * 400)))

    assert finding.severity is None


def test_a_falling_loss_is_clear():
    detector = LossPlateau()
    loss = noisy([3.0 * (1 + t / 100) ** -0.5 for t in range(800)])
    outputs = [update_detector(detector, record) for record in steps(loss=loss)]

    assert outputs[-1] == Clear()
    assert not any(isinstance(output, Finding) for output in outputs)


def test_noise_that_could_hide_a_fall_is_no_plateau():
    """An error larger than the required improvement allows no conclusion."""
    assert detect(noisy([1.0] * 400, sigma=0.5), [1e-5] * 400) == (None, None)


def test_a_plateau_is_found_at_the_second_flat_block():
    """70 % of 12 blocks of 8 hold 64 points; the 13th confirms the plateau."""
    record, _ = first_finding(LossPlateau(), steps(loss=[1.0] * 400))

    assert record.step == 13 * 8


def test_a_rising_loss_is_no_plateau():
    assert first_finding(LossPlateau(), steps(loss=[exp(t / 1000) for t in range(400)]))[0] is None


def test_it_clears_when_the_loss_falls_again():
    detector = LossPlateau()
    again = [FALLING[-1] * exp(-t / 400) for t in range(400)]
    outputs = [update_detector(detector, record) for record in steps(loss=noisy(STALLED + again))]

    assert isinstance(outputs[799], Finding)
    assert outputs[-1] == Clear()


@pytest.mark.parametrize("loss", [[0.5] * 400, [-1.0] * 400, [0.0] * 400])
def test_a_policy_gradient_loss_is_not_evaluated(loss):
    """Nor is a loss of zero or below, which has no logarithm."""
    reward = [1.0] * 400 if loss[0] > 0 else [None] * 400

    assert first_finding(LossPlateau(), steps(loss=loss, reward=reward)) == (None, None)


@pytest.mark.seeded
def test_reported_changes_match_the_noiseless_loss():
    """In healthy runs no plateau is reported for a loss that fell by over 2 %."""
    for seed in SEEDS:
        run = sft_run(seed)
        record, finding = first_finding(LossPlateau(), run.records())
        if finding:
            now = record.step // run.every - 1
            before = max(0, now - int(finding.evidence["logged_values"]))
            assert run.truth[before] / run.truth[now] < 1.02, seed


@pytest.mark.seeded
def test_detection_rate_of_stalls():
    runs = [sft_run(seed, "loss_plateau") for seed in SEEDS]
    found = [first_finding(LossPlateau(), run.records())[0] for run in runs]

    assert sum(
        r is not None and r.step >= run.onset for r, run in zip(found, runs, strict=True)
    ) >= 0.6 * len(runs)


def test_a_slow_start_is_no_warning():
    loss = noisy([6.93 * (1 - 0.03 * (t / 240) ** 2) for t in range(240)], sigma=1e-3)
    found = first_notable(LossPlateau(), steps(loss=loss))

    assert found == (None, None)
