"""Hits: what is hardly ever reached is counted."""

from random import Random

import pytest

from sentinel.stats.above_minimum_rate import MAX_BLOCKS, AboveMinimumRate


def shown(values):
    hits = AboveMinimumRate()
    for value in values:
        hits.add(value)
    return hits


def test_a_new_lowest_value_makes_hits_of_all_before_it():
    hits = shown([0.0] * 20 + [-1.0] * 20)

    assert (hits.minimum, hits.share) == (-1.0, 0.5)


def test_early_and_late_are_told_apart():
    early, late = shown([1.0, 0.0] * 40 + [0.0] * 80).counts_by_half

    assert (early, late) == (40, 0)


@pytest.mark.parametrize("count", [1, 7, 511, 512, 513, 10_000])
def test_none_is_lost_however_long_the_series(count):
    rng = Random(count)
    values = [0.0, *(float(rng.random() < 0.3) for _ in range(count - 1))]
    hits = shown(values)

    assert hits.share == pytest.approx(sum(values) / count)
    assert len(hits._block_counts) <= MAX_BLOCKS


def test_nothing_has_no_share():
    assert (AboveMinimumRate().share, AboveMinimumRate().counts_by_half) == (0.0, (0, 0))
