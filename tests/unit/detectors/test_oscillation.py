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


def outputs_of(loss):
    detector = Oscillation()
    return [update_detector(detector, record) for record in steps(loss=loss)]


def is_warned(loss):
    found = (each for each in outputs_of(loss) if isinstance(each, Finding))
    return any(each.severity is Severity.WARNING for each in found)


@pytest.mark.parametrize("steady", [0, 150])
def test_a_swing_that_does_not_shrink_is_a_warning(steady):
    assert is_warned(noisy(STEADY[:steady] + oscillating(250, size=0.2)))


@pytest.mark.parametrize("period", [2, 3])
def test_data_sources_that_take_turns_are_no_warning(period):
    sources = [2.0 * (1.0 + 0.3 * source / (period - 1)) for source in range(period)]

    assert not is_warned(noisy(sources * 150))


def test_a_swing_with_the_learning_rate_is_no_warning():
    rates = [1e-4 * (1.5 + sin(2 * pi * t / 20)) for t in range(400)]
    loss = noisy(oscillating(400, period=20.0, size=0.2))
    detector, flat = Oscillation(), Oscillation()
    cyclic = [update_detector(detector, each) for each in steps(loss=loss, learning_rate=rates)]
    steady = [update_detector(flat, each) for each in steps(loss=loss, learning_rate=[1e-4] * 400)]

    assert not any(getattr(each, "severity", None) is Severity.WARNING for each in cyclic)
    assert any(getattr(each, "severity", None) is Severity.WARNING for each in steady)


def test_a_swing_that_shrinks_is_no_warning():
    loss = [level ** exp(-t / 40) for t, level in enumerate(oscillating(300, level=1.0, size=0.4))]

    assert not is_warned(noisy(loss))
    assert not is_warned(noisy(STEADY[:150] + [2.0 * x for x in loss]))


def test_a_fixed_order_of_data_since_the_first_step_is_ignored():
    rng = Random(5)
    pattern = [2.0 * exp(rng.gauss(0.0, 0.1)) for _ in range(12)]

    assert detect(noisy(pattern * 50)) == (None, None)


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
