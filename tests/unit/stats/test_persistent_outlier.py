"""A rank is named if it is the outlier in nearly all records."""

from random import Random

import pytest

from sentinel.stats.persistent_outlier import PersistentOutlier, stats_of_others


def test_no_rank_is_named_before_the_window_is_full():
    outlier = PersistentOutlier(window=4)
    for step in range(3):
        outlier.add(5, 1.0, step)

    assert (outlier.is_full, outlier.rank) == (False, None)


def test_the_same_rank_in_nearly_all_records_is_named_with_its_median_degree():
    outlier = PersistentOutlier()
    for step in range(40):
        outlier.add(2 if step == 30 else 5, float(step), step)

    assert (outlier.rank, outlier.degree, outlier.since_step) == (5, 31.5, 24)


def test_random_outliers_name_no_rank():
    rng, outlier, named = Random(0), PersistentOutlier(), set()
    for step in range(20_000):
        outlier.add(rng.randrange(4), 1.0, step)
        named.add(outlier.rank)

    assert named == {None}


def test_stats_of_others_exclude_the_value():
    assert stats_of_others(4, 0.5, 0.75**0.5, 2.0) == pytest.approx((0.0, 0.0), abs=1e-6)
    assert stats_of_others(1, 3.0, 0.0, 3.0)[0] == 3.0
