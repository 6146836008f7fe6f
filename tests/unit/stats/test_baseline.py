"""A baseline follows what healthy signals do, and has evidence when a signal departs from it."""

from math import exp, log
from random import Random

import pytest

from sentinel.stats.baseline import Baseline, BaselineSettings, TrajectoryPrior

KL = BaselineSettings(
    TrajectoryPrior(slope=1.6, slope_sd=0.5, sigma=0.5, weight=8),
    rise_margin=0.15,
    least=3e-3,
    floor=0.01,
    young_slope=2.0,
)


def fed(baseline, values, first=1):
    for step, value in enumerate(values, start=first):
        baseline.update(value, log(step), step)
    return baseline


def power(count, exponent, sigma=0.3, seed=0, level=1.0):
    rng = Random(seed)
    return [level * (t / count) ** exponent * exp(rng.gauss(0, sigma)) for t in range(1, count + 1)]


@pytest.mark.parametrize("exponent", [0.6, 1.0, 2.0])
def test_growth_as_a_power_is_expected(exponent):
    for seed in range(8):
        rise, most = Baseline(KL), 0.0
        for step, value in enumerate(power(500, exponent, seed=seed), start=1):
            rise.update(value, log(step), step)
            most = max(most, rise.rise.evidence)
        assert most < 9.0
        assert rise.expected(rise.rise) == pytest.approx(1.0, rel=0.3)


def test_exponential_growth_is_evidence_with_its_onset():
    healthy = power(300, 1.0, level=0.1)
    grown = [0.1 * 2 ** (t / 20) for t in range(60)]
    baseline = fed(Baseline(KL), healthy + grown)

    assert baseline.rise.evidence > 9.0
    first, last = baseline.rise.onset_range
    assert 290 <= first <= last <= 340
    assert baseline.expected(baseline.rise) < 0.2


def test_the_threshold_held_for_eight_values_reaches_the_bound():
    baseline = fed(Baseline(KL), power(300, 1.0, level=0.1))
    threshold = baseline.threshold(baseline.rise, 9.0)
    fed(baseline, [threshold] * 8, first=301)

    assert 8.0 < baseline.rise.evidence < 11.0


def test_below_the_floor_no_rise_counts():
    assert fed(Baseline(KL), [1e-4] * 100 + [9e-3] * 100).rise.evidence == 0.0


def test_a_new_level_is_adopted_after_four_windows():
    baseline = fed(Baseline(KL), [0.1] * 200 + [1.0] * 1500)

    assert baseline.rise.evidence == 0.0
    assert baseline.expected(baseline.rise) == pytest.approx(1.0, rel=0.1)


def test_autocorrelated_noise_is_taken_for_what_it_is():
    """Noise that stays on one side for longer would be evidence of a shift."""
    settings = BaselineSettings(TrajectoryPrior(slope_sd=0.0), rise_margin=0.0, fall_margin=0.0)
    rng, alarms, noise = Random(1), 0, 0.0
    for _ in range(10):
        baseline, most = Baseline(settings), 0.0
        for step in range(1, 1001):
            noise = 0.6 * noise + 0.8 * rng.gauss(0, 0.1)
            baseline.update(exp(noise), log(step), step)
            most = max(most, baseline.rise.evidence, baseline.fall.evidence)
        alarms += most > 9.0

    assert alarms <= 1


def test_the_trajectory_of_an_alike_run_is_a_prior():
    """The blow-up is found sooner if the trajectory is known."""
    known = fed(Baseline(KL), power(400, 1.3, seed=1)).export()
    prior = TrajectoryPrior(0.0, 0.1, known.sigma, known.weight, known.course, level_sd=0.3)
    delays = []
    for each in (None, prior):
        baseline = fed(Baseline(KL, each), power(400, 1.3, seed=2)[:200])
        value = baseline.expected(baseline.rise)
        for step in range(201, 300):
            baseline.update(value * 2 ** ((step - 200) / 20), log(step), step)
            if baseline.rise.evidence > 9.0:
                delays.append(step - 200)
                break

    assert delays[1] <= delays[0]


def test_extreme_values_do_not_raise():
    baseline = Baseline(BaselineSettings(TrajectoryPrior(), rise_margin=0.1, fall_margin=0.1))
    linear = Baseline(BaselineSettings(TrajectoryPrior(), fall_margin=0.1, is_log=False))
    for at in range(300):
        value = (1e308, -1e308, 0.0, 1e-300, 1.0)[at % 5]
        baseline.update(value, log(at + 1), at)
        linear.update(value, log(at + 1), at)

    assert baseline.threshold(baseline.rise, 9.0) is not None
