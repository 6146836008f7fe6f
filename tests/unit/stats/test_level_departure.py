"""A level departs from its trajectory for one that the run never had, or it does not."""

from math import exp, log
from random import Random

import pytest

from sentinel.stats.baseline import Baseline, BaselineSettings, TrajectoryPrior
from sentinel.stats.level_departure import LevelDeparture
from sentinel.stats.shared_baselines import SharedBaselines

SETTINGS = BaselineSettings(TrajectoryPrior(slope_sd=0.3, sigma=0.1, weight=8), fall_margin=0.1)


def departure_of(levels):
    rng, baseline, departure = Random(3), Baseline(SETTINGS), LevelDeparture("x", -1, 0.7, 6.0)
    for step, level in enumerate(levels, start=1):
        value = level * exp(rng.gauss(0, 0.05))
        baseline.update(value, log(step), step)
        assert departure.add(value, SharedBaselines({"x": baseline}))
    return departure


FALL = [exp(-t / 20) for t in range(40)]


def test_without_a_baseline_a_level_is_not_compared():
    assert not LevelDeparture("x", -1, 0.7, 6.0).add(1.0, SharedBaselines())


def test_a_steady_level_has_not_departed():
    departure = departure_of([1.0] * 200)

    assert not departure.has_departed
    assert departure.level == pytest.approx(1.0, abs=0.1)
    assert 0.5 < departure.threshold < 0.95


def test_a_fall_departs_with_its_onset_and_what_was_expected():
    departure = departure_of([1.0] * 150 + FALL)

    assert departure.has_departed
    first, last = departure.onset_range
    assert 145 <= first <= last <= 175
    assert departure.expected_level == pytest.approx(1.0, abs=0.1)
    assert departure.level < 0.3


def test_a_return_to_an_early_level_has_not_departed():
    assert not departure_of([0.1] * 60 + [1.0] * 150 + FALL[:38]).has_departed
