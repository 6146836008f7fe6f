"""Tests of the detector grad_explosion."""

from math import exp
from random import Random

import pytest
from support.faulty_series import norm_run, records
from support.notable_findings import first_notable
from support.seeds import SEEDS

from sentinel.detectors.grad_explosion import GradExplosion
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.testing import first_finding, steps, update_detector


def noisy(levels, sigma=0.3, seed=0):
    rng = Random(seed)
    return [level * exp(rng.gauss(0.0, sigma)) for level in levels]


def detect(norms):
    return first_finding(GradExplosion(), steps(grad_norm=norms))


def detect_notable(series):
    return first_notable(GradExplosion(), series)


def test_a_norm_that_rises_and_stays_is_a_warning_within_six_points():
    record, finding = detect_notable(steps(grad_norm=noisy([1.0] * 100 + [50.0] * 50)))

    assert 101 <= record.step <= 106
    assert finding.onset_step == 101


def test_one_outlier_is_info():
    record, finding = detect(noisy([1.0] * 100 + [50.0] + [1.0] * 50))

    assert record.step == 101
    assert finding.severity is Severity.INFO
    assert detect(noisy([1.0] * 100 + [5.0] + [1.0] * 50)) == (None, None)


def test_an_outlier_in_a_noisy_series_is_ignored():
    assert detect(noisy([1.0] * 400, sigma=1.5)) == (None, None)


def test_an_explosion_in_the_first_steps_is_found_without_a_baseline():
    record, finding = detect([0.4, 0.4, 0.5, 0.5, 0.7, 0.7, 1.0, 6.0, 9.0, 9.0, 9.0])

    assert record.step == 9
    assert finding.severity is None
    assert finding.onset_step == 7


def test_a_transient_in_the_first_steps_is_ignored():
    """A transient at the start is usual, and so is a norm that doubles in the warm-up."""
    assert detect([50.0, 20.0, 8.0, 3.0, *noisy([1.0] * 100)]) == (None, None)
    assert detect(noisy([1.0 + t / 10 for t in range(30)])) == (None, None)


def test_steps_without_a_learning_signal_do_not_lower_the_baseline():
    mixed = [x for pair in zip([0.0] * 100, noisy([1.0] * 100), strict=True) for x in pair]

    assert detect(mixed) == (None, None)


def test_a_level_reached_before_is_no_explosion():
    norms = noisy([10.0] * 60 + [1.0] * 200 + [8.0] * 60)

    assert detect_notable(steps(grad_norm=norms)) == (None, None)


def test_it_clears_once_the_norm_is_back():
    detector = GradExplosion()
    norms = noisy([1.0] * 100 + [50.0] * 20 + [1.0] * 40)
    outputs = [update_detector(detector, record) for record in steps(grad_norm=norms)]

    assert isinstance(outputs[119], Finding)
    assert outputs[-1] == Clear()


@pytest.mark.seeded
@pytest.mark.parametrize("seed", SEEDS)
def test_healthy_runs_have_no_false_warning(seed):
    assert detect_notable(records(norm_run(seed))) == (None, None)


def test_every_hundredfold_rise_is_found_after_its_onset():
    for seed in range(100, 115):
        run = norm_run(seed, "grad_explosion")
        record, _ = detect_notable(records(run))
        assert record is not None, seed
        assert run.onset <= record.step <= run.onset + 60 * run.every, seed
