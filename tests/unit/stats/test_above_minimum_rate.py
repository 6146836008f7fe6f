"""Values above the minimum are counted over a whole series."""

from random import Random

import pytest

from sentinel.stats.above_minimum_rate import MAX_BLOCKS, AboveMinimumRate


def rate_of(values):
    rate = AboveMinimumRate()
    for value in values:
        rate.add(value)
    return rate


def test_a_new_minimum_puts_all_earlier_values_above_it():
    rate = rate_of([0.0] * 20 + [-1.0] * 20)

    assert (rate.minimum, rate.share) == (-1.0, 0.5)


def test_the_first_and_the_last_half_are_counted_separately():
    early, late = rate_of([1.0, 0.0] * 40 + [0.0] * 80).counts_by_half

    assert (early, late) == (40, 0)


@pytest.mark.parametrize("count", [1, 7, 511, 512, 513, 10_000])
def test_no_value_is_lost_however_long_the_series(count):
    rng = Random(count)
    values = [0.0, *(float(rng.random() < 0.3) for _ in range(count - 1))]
    rate = rate_of(values)

    assert rate.share == pytest.approx(sum(values) / count)
    assert len(rate._block_counts) <= MAX_BLOCKS


def test_an_empty_series_has_share_zero():
    assert (AboveMinimumRate().share, AboveMinimumRate().counts_by_half) == (0.0, (0, 0))
