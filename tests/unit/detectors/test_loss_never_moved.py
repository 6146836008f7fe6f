"""Tests of the detector loss_never_moved."""

from math import exp, log
from random import Random

import pytest
from support.faulty_series import loss_run
from support.seeds import SEEDS

from sentinel.detectors.loss_never_moved import LossNeverMoved
from sentinel.model.finding import Clear, Finding
from sentinel.model.record import Event
from sentinel.testing import event, first_finding, steps, update_detector


def noisy(levels, sigma=0.03, seed=0):
    rng = Random(seed)
    return [level * exp(rng.gauss(0.0, sigma)) for level in levels]


def detect(loss, **more):
    return first_finding(LossNeverMoved(), steps(loss=loss, **more))


def stuck(seed):
    """The noise of a synthetic run on a constant loss."""
    run = loss_run(seed)
    run.series["loss"] = run.series["loss"] / run.truth * run.truth[0]
    return run


def test_a_loss_constant_since_the_first_step_is_a_warning():
    record, finding = detect(noisy([7.6] * 300))

    assert 160 <= record.step <= 200
    assert finding.severity is None
    assert finding.onset_step == 1
    assert "guessing" not in finding.summary


def test_a_loss_that_fell_at_once_has_moved():
    assert detect(noisy([3.0, 2.5, 2.0, 1.7, 1.5] + [1.4] * 600)) == (None, None)


def test_a_loss_that_falls_slowly_has_moved():
    assert detect(noisy([3.0 * exp(-t / 2000) for t in range(600)])) == (None, None)


def test_a_loss_that_reached_only_chance_level_is_named():
    loss = noisy([1.2 * exp(-t / 20) + log(2) for t in range(800)])
    _, finding = detect(loss)

    assert "ln 2" in finding.summary


def test_noise_that_could_hide_a_fall_is_not_evaluated():
    assert detect(noisy([1.0] * 160, sigma=0.5)) == (None, None)


def test_nothing_is_found_during_a_warm_up():
    warming = [1e-6 * (t + 1) for t in range(300)]

    assert detect(noisy([2.0] * 300), learning_rate=warming) == (None, None)


def test_nothing_is_found_in_the_first_tenth_of_a_long_run():
    def of(length):
        yield event(Event.START, 0, max_steps=length)
        yield from steps(loss=noisy([2.0] * 400))

    assert first_finding(LossNeverMoved(), of(10_000.0)) == (None, None)
    assert first_finding(LossNeverMoved(), of(2_000.0))[0] is not None


def test_a_policy_gradient_loss_is_not_evaluated():
    assert detect(noisy([2.0] * 400), reward=[1.0] * 400) == (None, None)


def test_it_clears_once_the_loss_has_moved():
    detector = LossNeverMoved()
    loss = noisy([2.0] * 200 + [2.0 * exp(-t / 200) for t in range(400)])
    outputs = [update_detector(detector, record) for record in steps(loss=loss)]

    assert any(isinstance(output, Finding) for output in outputs[:250])
    assert outputs[-1] == Clear()


@pytest.mark.seeded
@pytest.mark.parametrize("seed", SEEDS)
def test_healthy_runs_have_no_false_warning(seed):
    assert first_finding(LossNeverMoved(), loss_run(seed).records()) == (None, None)


@pytest.mark.seeded
def test_nearly_all_runs_that_learn_nothing_are_found():
    runs = [stuck(seed) for seed in SEEDS]
    long_enough = [run for run in runs if len(run) >= 300]
    found = [first_finding(LossNeverMoved(), run.records())[0] for run in long_enough]

    assert sum(record is not None for record in found) >= 0.8 * len(found)
