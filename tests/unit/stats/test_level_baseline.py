"""A baseline without a trend ignores outliers, and has evidence of shifts that last."""

from itertools import pairwise
from random import Random

from sentinel.stats.baseline import MAX_FROZEN_VALUES, level_baseline


def noise(count, seed=0):
    rng = Random(seed)
    return [rng.gauss(0.0, 1.0) for _ in range(count)]


def run(baseline, values):
    alarms = []
    for at, value in enumerate(values):
        baseline.update(value, at, at)
        alarms.append(baseline.rise.is_alarmed or baseline.fall.is_alarmed)
    return alarms


def rising(margin=1.0, min_sigma=1e-9):
    return level_baseline(1, margin, min_sigma)


def test_there_is_no_alarm_before_a_baseline():
    assert not any(run(rising(), [0.0] * 8 + [100.0] * 3))


def test_a_step_raises_an_alarm_within_a_few_values_with_its_onset():
    baseline = rising()
    alarms = run(baseline, noise(200) + [6.0] * 20)

    assert 203 <= alarms.index(True) <= 206
    assert abs(baseline.rise.onset - 200) <= 1


def test_only_one_direction_raises_an_alarm():
    assert not any(run(level_baseline(-1, 1.0, 1e-9), noise(200) + [6.0] * 50))
    assert any(run(level_baseline(-1, 1.0, 1e-9), noise(200) + [-6.0] * 50))


def test_three_outliers_raise_no_alarm():
    assert not any(run(rising(), (noise(97) + [1e12] * 3) * 10))


def test_a_shift_within_the_margin_raises_no_alarm():
    assert not any(run(rising(margin=3.0), noise(300) + [2.0] * 300))


def test_the_baseline_does_not_adapt_to_the_fault():
    baseline = rising()
    alarms = run(baseline, noise(200) + [8.0] * 200)

    assert all(alarms[210:])
    assert abs(baseline.expected(baseline.rise)) < 1.0


def test_a_level_that_lasts_becomes_the_baseline():
    baseline = rising()
    alarms = run(baseline, noise(200) + [x + 8.0 for x in noise(MAX_FROZEN_VALUES + 200)])

    assert not alarms[-1]
    assert abs(baseline.expected(baseline.rise) - 8.0) < 1.0


def test_the_alarm_ends_once_when_the_series_returns():
    alarms = run(rising(), noise(200) + [6.0] * 30 + noise(60, seed=1))
    changes = [at for at, (before, now) in enumerate(pairwise(alarms), start=1) if before != now]

    assert len(changes) == 2
    assert changes[1] <= 245


def test_an_alarm_does_not_end_at_the_first_normal_value():
    alarms = run(rising(), noise(200) + [6.0] * 30 + [0.0] * 20)

    assert all(alarms[230:236])
    assert not any(alarms[240:])


def test_the_least_sigma_prevents_alarms_without_noise():
    assert not any(run(rising(0.3, min_sigma=0.1), [1.0] * 100 + [1.2] * 100))
