"""Margin CUSUM: slow to cry, quick to see what stays, and not taught by the fault."""

from itertools import pairwise
from random import Random

from sentinel.stats.margin_cusum import MAX_FROZEN_WINDOWS, MarginCusum


def calm(count, seed=0):
    rng = Random(seed)
    return [rng.gauss(0.0, 1.0) for _ in range(count)]


def run(cusum, values, margin=1.0):
    return [cusum.update(value, margin, at) for at, value in enumerate(values)]


def test_says_nothing_before_it_has_a_baseline():
    assert not any(run(MarginCusum(sign=1), [0.0] * 16 + [100.0] * 15))


def test_sees_a_step_within_a_few_values_and_dates_it():
    cusum = MarginCusum(sign=1)
    alarms = run(cusum, calm(200) + [6.0] * 20)

    assert 203 <= alarms.index(True) <= 206
    assert abs(cusum.onset - 200) <= 1


def test_watches_one_side_only():
    assert not any(run(MarginCusum(sign=-1), calm(200) + [6.0] * 50))
    assert any(run(MarginCusum(sign=-1), calm(200) + [-6.0] * 50))


def test_no_three_values_raise_an_alarm_however_wild():
    assert not any(run(MarginCusum(sign=1), (calm(97) + [1e12] * 3) * 10))


def test_what_stays_within_the_margin_is_no_alarm():
    assert not any(run(MarginCusum(sign=1), calm(300) + [2.0] * 300, margin=3.0))


def test_the_baseline_does_not_learn_from_the_fault():
    cusum = MarginCusum(sign=1, window=64)
    alarms = run(cusum, calm(200) + [8.0] * 200)

    assert all(alarms[210:])
    assert abs(cusum.baseline_median) < 1.0


def test_a_level_that_stays_for_long_becomes_the_usual_one():
    cusum = MarginCusum(sign=1, window=32)
    alarms = run(cusum, calm(200) + [x + 8.0 for x in calm(32 * (MAX_FROZEN_WINDOWS + 6))])

    assert not alarms[-1]
    assert abs(cusum.baseline_median - 8.0) < 1.0


def test_comes_back_with_the_series_and_does_not_flicker_on_the_way():
    alarms = run(MarginCusum(sign=1), calm(200) + [6.0] * 30 + calm(60, seed=1))
    changes = [at for at, (before, now) in enumerate(pairwise(alarms), start=1) if before != now]

    assert len(changes) == 2
    assert changes[1] <= 245


def test_an_alarm_needs_more_than_one_calm_value_to_end():
    alarms = run(MarginCusum(sign=1), calm(200) + [6.0] * 30 + [0.0] * 20)

    assert all(alarms[230:236])
    assert not any(alarms[240:])


def test_the_floor_keeps_a_series_without_noise_from_alarming_at_nothing():
    assert not any(run(MarginCusum(sign=1, min_sigma=0.1), [1.0] * 100 + [1.2] * 100, margin=0.3))
