"""Tests of the detector oscillation."""

from math import exp, pi, sin
from random import Random

import pytest
from support.faulty_series import loss_run
from support.seeds import SEEDS

from sentinel.detectors.oscillation import Oscillation
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.testing import first_finding, steps, update_detector


def noisy(levels, sigma=0.03, seed=0):
    rng = Random(seed)
    return [level * exp(rng.gauss(0.0, sigma)) for level in levels]


def oscillating(count, period=10.0, size=0.1, level=2.0):
    return [level * exp(size * sin(2 * pi * t / period)) for t in range(count)]


STEADY = [2.0] * 250


def detect(loss, **more):
    return first_finding(Oscillation(), steps(loss=loss, **more))


def test_an_oscillating_loss_is_info_with_its_period():
    record, finding = detect(noisy(STEADY + oscillating(150)))

    assert 270 <= record.step <= 330
    assert Oscillation.severity is Severity.INFO
    assert finding.evidence["swing_period_in_logged_values"] == 10
    assert finding.onset_step <= 250


@pytest.mark.parametrize("sigma", [0.03, 0.3])
def test_growing_noise_is_no_oscillation(sigma):
    assert detect(noisy(STEADY, sigma) + noisy(STEADY, 3 * sigma, seed=1)) == (None, None)


def test_an_oscillation_since_the_first_step_is_ignored():
    assert detect(noisy(oscillating(600))) == (None, None)


def test_a_tiny_oscillation_is_ignored():
    assert detect(noisy(STEADY, 0.001) + noisy(oscillating(200, size=0.01), 0.001)) == (None, None)


def test_a_fall_and_a_step_are_no_oscillation():
    falling = [1.0 + 2.0 * exp(-t / 60) for t in range(400)]

    assert detect(noisy(falling)) == (None, None)
    assert detect(noisy([2.0] * 250 + [1.5] * 250)) == (None, None)


def test_a_policy_gradient_loss_is_not_evaluated():
    assert detect(noisy(STEADY + oscillating(150)), reward=[1.0] * 400) == (None, None)


def test_it_clears_once_the_loss_is_steady():
    detector = Oscillation()
    outputs = [
        update_detector(detector, r) for r in steps(loss=noisy(STEADY + oscillating(150) + STEADY))
    ]

    assert isinstance(outputs[399], Finding)
    assert outputs[-1] == Clear()


@pytest.mark.seeded
@pytest.mark.parametrize("seed", SEEDS)
def test_healthy_runs_have_no_finding(seed):
    assert first_finding(Oscillation(), loss_run(seed).records()) == (None, None)
