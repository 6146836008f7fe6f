"""A steady rise is extrapolated to its limit, and nothing else is."""

from math import inf, sin
from random import Random

from sentinel.pipeline.snapshot import deserialize, serialize
from sentinel.stats.time_to_limit import TimeToLimit


def estimate_of(level, seconds, every=5.0):
    estimate = TimeToLimit()
    for index in range(int(seconds / every)):
        estimate.add(index * every, level(index * every))
    return estimate


def test_a_straight_line_is_extrapolated_to_its_limit():
    estimate = estimate_of(lambda t: 100 + 0.1 * t, 3600)

    assert abs(estimate.rise_per_second - 0.1) < 1e-6
    assert abs(estimate.seconds_left(100 + 0.1 * 3600 + 90) - 900) < 10


def test_the_extrapolation_is_limited_to_twice_the_observed_rise():
    estimate = estimate_of(lambda t: 100 + 0.1 * t, 3600)

    assert estimate.seconds_left(1e9) == inf


def test_there_is_no_estimate_in_the_first_quarter_of_an_hour():
    assert estimate_of(lambda t: t, 900).seconds_left(1000) == inf


def test_a_slow_rise_is_detected_at_a_longer_scale():
    rng = Random(0)
    estimate = estimate_of(lambda t: 1e-3 * t + rng.gauss(0, 1), 16 * 3600, every=30.0)

    assert estimate.rise_seconds > 3600
    assert abs(estimate.rise_per_second / 1e-3 - 1) < 0.2


def test_flattening_oscillating_and_constant_levels_have_no_estimate():
    rng = Random(1)
    shapes = (
        lambda t: 100 - 100 / (1 + t / 300),
        lambda t: 50 + 20 * sin(t / 200),
        lambda t: 50 + rng.gauss(0, 3),
        lambda t: 50.0,
        lambda t: min(t, 1200.0),
    )

    assert [estimate_of(shape, 7200).seconds_left(101) for shape in shapes] == [inf] * 5


def test_short_peaks_are_ignored():
    estimate = estimate_of(lambda t: 50.0 + 40 * (int(t) % 60 > 40), 7200)

    assert estimate.rise_per_second == 0.0


def test_a_gap_or_a_clock_set_back_discards_the_history():
    estimate = estimate_of(lambda t: t, 3600)
    assert estimate.seconds_left(3700) < inf

    estimate.add(3595.0 + 241, 5000.0)
    assert estimate.seconds_left(6000) == inf

    estimate = estimate_of(lambda t: t, 3600)
    estimate.add(10.0, 5000.0)
    assert estimate.seconds_left(6000) == inf


def test_the_serialized_state_is_bounded():
    estimate = estimate_of(lambda t: t, 30 * 3600, every=30.0)

    assert len(serialize(estimate)) < 12_000
    again = deserialize(serialize(estimate))
    assert again.seconds_left(2e5) == estimate.seconds_left(2e5)
