"""Lone: chance names another rank each time, a fault does not."""

from random import Random

import pytest

from sentinel.stats.persistent_outlier import PersistentOutlier, stats_of_others


def test_nobody_is_named_before_the_window_is_full():
    lone = PersistentOutlier(window=4)
    for step in range(3):
        lone.add(5, 1.0, step)

    assert (lone.is_full, lone.rank) == (False, None)


def test_the_same_rank_in_nearly_all_records_is_named_with_its_median_degree():
    lone = PersistentOutlier()
    for step in range(40):
        lone.add(2 if step == 30 else 5, float(step), step)

    assert (lone.rank, lone.degree, lone.since_step) == (5, 31.5, 24)


def test_chance_names_nobody():
    rng, lone, named = Random(0), PersistentOutlier(), set()
    for step in range(20_000):
        lone.add(rng.randrange(4), 1.0, step)
        named.add(lone.rank)

    assert named == {None}


def test_the_others_are_told_without_the_one():
    assert stats_of_others(4, 0.5, 0.75**0.5, 2.0) == pytest.approx((0.0, 0.0), abs=1e-6)
    assert stats_of_others(1, 3.0, 0.0, 3.0)[0] == 3.0
