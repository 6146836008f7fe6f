"""A run leaves the band of good ones where it departs from them, and not by its seed alone."""

from __future__ import annotations

import numpy as np
import pytest

from sentinel.stats.good_band import Curve, good_band

STEPS = 400
RUNS = 6


def run(seed, *, level=2.0, noise=0.1, change_at=None, change=0.0, steps=STEPS, speed=1.0):
    """A loss that falls, with a change that grows over a tenth of the run."""
    at = np.arange(1.0, steps + 1)
    values = (
        level
        + 3 * np.exp(-at * speed / 60)
        + noise * np.random.default_rng(seed).normal(size=steps)
    )
    if change_at is not None:
        values += change * np.clip((at - change_at) / (STEPS / 10), 0, 1)
    return Curve(at, values)


def departed(band, curve):
    found = band.departure(curve)
    return None if found is None else found.step


@pytest.mark.parametrize("goods", [1, 3])
def test_runs_of_another_seed_or_speed_stay(goods):
    for seed in range(RUNS):
        band = good_band([run(100 * seed + each) for each in range(goods)], np.inf)
        assert departed(band, run(seed + 5000)) is None
        assert departed(band, run(seed + 6000, speed=1.05)) is None


@pytest.mark.parametrize("goods", [1, 3])
@pytest.mark.parametrize("change", [0.6, -0.6])
def test_the_first_step_of_a_departure_is_found(goods, change):
    misses = []
    for seed in range(RUNS):
        band = good_band([run(100 * seed + each) for each in range(goods)], np.inf)
        found = band.departure(run(seed + 5000, change_at=200, change=change))
        misses.append(abs(found.step - 200))
        assert found.sign == np.sign(change)
        assert found.value > found.high if change > 0 else found.value < found.low
    assert max(misses) <= STEPS / 10


def test_the_spread_of_several_good_runs_is_their_band():
    goods = [run(seed, level=level) for seed, level in enumerate((1.5, 2.0, 2.5))]

    assert departed(good_band(goods, np.inf), run(9, level=2.6)) is None
    assert departed(good_band(goods[1:2], np.inf), run(9, level=2.6)) is not None


def test_outliers_and_gaps_are_no_departure():
    curve = run(1)
    spikes = curve.values.copy()
    spikes[[50, 200, 201, 300]] = 40.0
    kept = np.ones(STEPS, dtype=bool)
    kept[150:170] = False
    band = good_band([run(2)], np.inf)

    assert departed(band, Curve(curve.steps, spikes)) is None
    assert departed(band, Curve(curve.steps[kept], curve.values[kept])) is None


def test_a_run_that_ended_early_is_judged_up_to_its_end():
    band = good_band([run(2)], 100)

    assert departed(band, run(3, steps=100)) is None
    assert departed(band, run(3, steps=100, change_at=40, change=2.0)) == pytest.approx(40, abs=15)


def test_a_schedule_without_noise_departs_at_once_and_an_equal_one_does_not():
    steps = np.arange(1.0, STEPS + 1)
    schedule = 1e-4 * (1 - steps / STEPS) + 1e-6
    band = good_band([Curve(steps, schedule)], np.inf)

    assert departed(band, Curve(steps, schedule)) is None
    assert departed(band, Curve(steps, 2 * schedule)) == 1


def test_too_few_values_and_a_signal_that_is_always_zero_have_no_band():
    steps = np.arange(1.0, STEPS + 1)

    assert good_band([run(1, steps=8)], np.inf) is None
    assert good_band([run(1)], 5) is None
    assert good_band([Curve(steps, np.zeros(STEPS))], np.inf) is None


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_the_scale_of_a_signal_does_not_matter(scale):
    good, bad = run(1), run(2, change_at=200, change=1.0)
    expected = departed(good_band([good], np.inf), bad)

    scaled = good_band([Curve(good.steps, good.values * scale)], np.inf)
    assert departed(scaled, Curve(bad.steps, bad.values * scale)) == expected
