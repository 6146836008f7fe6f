"""The margin CUSUM ignores outliers, detects lasting shifts and does not adapt to them."""

from itertools import pairwise
from random import Random

from sentinel.stats.margin_cusum import MAX_FROZEN_WINDOWS, MarginCusum


def noise(count, seed=0):
    rng = Random(seed)
    return [rng.gauss(0.0, 1.0) for _ in range(count)]


def run(cusum, values, margin=1.0):
    return [cusum.update(value, margin, at) for at, value in enumerate(values)]


def test_there_is_no_alarm_before_a_baseline():
    assert not any(run(MarginCusum(sign=1), [0.0] * 16 + [100.0] * 15))


def test_a_step_raises_an_alarm_within_a_few_values_with_its_onset():
    cusum = MarginCusum(sign=1)
    alarms = run(cusum, noise(200) + [6.0] * 20)

    assert 203 <= alarms.index(True) <= 206
    assert abs(cusum.onset - 200) <= 1


def test_only_one_direction_raises_an_alarm():
    assert not any(run(MarginCusum(sign=-1), noise(200) + [6.0] * 50))
    assert any(run(MarginCusum(sign=-1), noise(200) + [-6.0] * 50))


def test_three_outliers_raise_no_alarm():
    assert not any(run(MarginCusum(sign=1), (noise(97) + [1e12] * 3) * 10))


def test_a_shift_within_the_margin_raises_no_alarm():
    assert not any(run(MarginCusum(sign=1), noise(300) + [2.0] * 300, margin=3.0))


def test_the_baseline_does_not_adapt_to_the_fault():
    cusum = MarginCusum(sign=1, window=64)
    alarms = run(cusum, noise(200) + [8.0] * 200)

    assert all(alarms[210:])
    assert abs(cusum.baseline_median) < 1.0


def test_a_level_that_lasts_becomes_the_baseline():
    cusum = MarginCusum(sign=1, window=32)
    alarms = run(cusum, noise(200) + [x + 8.0 for x in noise(32 * (MAX_FROZEN_WINDOWS + 6))])

    assert not alarms[-1]
    assert abs(cusum.baseline_median - 8.0) < 1.0


def test_the_alarm_ends_once_when_the_series_returns():
    alarms = run(MarginCusum(sign=1), noise(200) + [6.0] * 30 + noise(60, seed=1))
    changes = [at for at, (before, now) in enumerate(pairwise(alarms), start=1) if before != now]

    assert len(changes) == 2
    assert changes[1] <= 245


def test_an_alarm_does_not_end_at_the_first_normal_value():
    alarms = run(MarginCusum(sign=1), noise(200) + [6.0] * 30 + [0.0] * 20)

    assert all(alarms[230:236])
    assert not any(alarms[240:])


def test_the_least_sigma_prevents_alarms_without_noise():
    assert not any(run(MarginCusum(sign=1, min_sigma=0.1), [1.0] * 100 + [1.2] * 100, margin=0.3))
