"""Onset estimates on synthetic signals, and no estimate without a clear change."""

from __future__ import annotations

import numpy as np
import pytest

from sentinel.model.incident import Onset
from sentinel.pipeline.onset import MAX_EARLIER_POINTS, estimate_onset

HEALTHY_POINTS = 120
"""Points before the change."""


def series(seed, after, shape):
    rng = np.random.default_rng(seed)
    noise = rng.normal(0.0, 1.0, HEALTHY_POINTS + after)
    values = np.r_[np.zeros(HEALTHY_POINTS), shape(np.arange(1, after + 1))] + noise
    return [(10 * n, float(value)) for n, value in enumerate(values)]


def jump(since_onset):
    return np.full(len(since_onset), 5.0)


def ramp(since_onset):
    return 0.3 * since_onset


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("shape", "after", "tolerance"), [(jump, 6, 10), (jump, 40, 10), (ramp, 40, 150)]
)
def test_the_onset_is_in_the_interval_and_near_the_estimate(seed, shape, after, tolerance):
    found = estimate_onset(series(seed, after, shape), 10 * (HEALTHY_POINTS + 3))

    assert abs(found.step - 10 * HEALTHY_POINTS) <= tolerance
    assert found.earliest - 10 <= 10 * HEALTHY_POINTS <= found.latest + 10
    assert found.earliest <= found.step <= found.latest


def test_exponential_growth_is_estimated_on_its_logarithm():
    rng = np.random.default_rng(3)
    grown = np.r_[np.zeros(HEALTHY_POINTS), 0.1 * np.arange(1, 41)] + rng.normal(
        0.0, 0.2, HEALTHY_POINTS + 40
    )
    found = estimate_onset(
        [(n, float(np.exp(value))) for n, value in enumerate(grown)], HEALTHY_POINTS + 10
    )

    assert abs(found.step - HEALTHY_POINTS) <= 12


def test_a_trend_has_no_onset_but_a_jump_in_it_has():
    rng = np.random.default_rng(1)
    falling = [2.0 - 0.01 * n + float(rng.normal(0.0, 0.05)) for n in range(HEALTHY_POINTS)]
    risen = [value + 0.6 for value in falling[-20:]]

    assert estimate_onset(list(enumerate(falling)), HEALTHY_POINTS - 5) is None
    assert (
        estimate_onset(list(enumerate(falling + risen)), HEALTHY_POINTS + 2).step == HEALTHY_POINTS
    )


@pytest.mark.parametrize(
    "points",
    [
        pytest.param([(n, 1.0) for n in range(100)], id="constant"),
        pytest.param(series(1, 0, jump), id="noise"),
    ],
)
def test_there_is_no_estimate_without_a_clear_change(points):
    assert estimate_onset(points, 10 * HEALTHY_POINTS) is None


def test_the_change_next_to_the_suspected_onset_is_found_among_larger_ones():
    """A run has a past: the level of the reward rose by more than it falls."""
    rng = np.random.default_rng(1)
    levels = np.r_[np.full(60, -20.0), np.zeros(40), np.full(12, -5.0)]
    points = list(enumerate((levels + rng.normal(0.0, 1.0, 112)).tolist()))

    assert estimate_onset(points, 104).step == 100


def test_a_change_long_before_the_suspected_onset_is_another_one():
    points = series(1, MAX_EARLIER_POINTS + 20, jump)

    assert estimate_onset(points, 10 * (HEALTHY_POINTS + MAX_EARLIER_POINTS + 1)) is None


def test_one_value_shows_a_jump():
    points = series(1, 1, lambda since_onset: 40.0 * since_onset)

    assert estimate_onset(points, 10 * HEALTHY_POINTS) == Onset(1200, 1200, 1200)


@pytest.mark.parametrize("sizes", [(1e200,), (1e200,) * 4, (-1.7e308,) * 3])
@pytest.mark.parametrize("unit", [1e-300, 1.0, 1e199])
def test_a_change_to_values_whose_squares_overflow_has_an_onset(sizes, unit):
    healthy = [unit * (-1.0 + 0.01 * (n * 7 % 5)) for n in range(60)]

    assert estimate_onset(list(enumerate([*healthy, *sizes])), 60) == Onset(60, 60, 60)


def test_the_estimate_is_deterministic():
    points = series(4, 20, ramp)

    assert estimate_onset(points, 1230) == estimate_onset(points, 1230)
    assert isinstance(estimate_onset(points, 1230), Onset)
