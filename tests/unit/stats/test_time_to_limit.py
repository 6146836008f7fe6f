"""Creep: a steady rise is foreseen to its limit, and nothing else is."""

from math import inf, sin
from random import Random

from sentinel.pipeline.snapshot import deserialize, serialize
from sentinel.stats.time_to_limit import TimeToLimit


def fed(level, seconds, every=5.0):
    creep = TimeToLimit()
    for index in range(int(seconds / every)):
        creep.add(index * every, level(index * every))
    return creep


def test_a_straight_line_is_foreseen_to_its_limit():
    creep = fed(lambda t: 100 + 0.1 * t, 3600)

    assert abs(creep.rise_per_second - 0.1) < 1e-6
    assert abs(creep.seconds_left(100 + 0.1 * 3600 + 90) - 900) < 10


def test_it_does_not_look_further_than_twice_what_it_saw():
    creep = fed(lambda t: 100 + 0.1 * t, 3600)

    assert creep.seconds_left(1e9) == inf


def test_nothing_is_said_of_the_first_quarter_of_an_hour():
    assert fed(lambda t: t, 900).seconds_left(1000) == inf


def test_a_slow_rise_is_seen_at_a_longer_scale():
    rng = Random(0)
    creep = fed(lambda t: 1e-3 * t + rng.gauss(0, 1), 16 * 3600, every=30.0)

    assert creep.rise_seconds > 3600
    assert abs(creep.rise_per_second / 1e-3 - 1) < 0.2


def test_what_levels_off_what_swings_and_what_stands_still_has_no_rate():
    rng = Random(1)
    shapes = (
        lambda t: 100 - 100 / (1 + t / 300),
        lambda t: 50 + 20 * sin(t / 200),
        lambda t: 50 + rng.gauss(0, 3),
        lambda t: 50.0,
        lambda t: min(t, 1200.0),
    )

    assert [fed(shape, 7200).seconds_left(101) for shape in shapes] == [inf] * 5


def test_peaks_that_pass_are_not_seen():
    creep = fed(lambda t: 50.0 + 40 * (int(t) % 60 > 40), 7200)

    assert creep.rise_per_second == 0.0


def test_after_a_gap_or_a_clock_set_back_it_begins_anew():
    creep = fed(lambda t: t, 3600)
    assert creep.seconds_left(3700) < inf

    creep.add(3595.0 + 241, 5000.0)
    assert creep.seconds_left(6000) == inf

    creep = fed(lambda t: t, 3600)
    creep.add(10.0, 5000.0)
    assert creep.seconds_left(6000) == inf


def test_its_memory_is_bounded_and_it_can_be_kept():
    creep = fed(lambda t: t, 30 * 3600, every=30.0)

    assert len(serialize(creep)) < 12_000
    again = deserialize(serialize(creep))
    assert again.seconds_left(2e5) == creep.seconds_left(2e5)
