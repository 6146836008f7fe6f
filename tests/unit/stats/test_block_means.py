"""A series of any length is reduced to at most 64 block means."""

from random import Random

import pytest

from sentinel.stats.block_means import (
    MAX_BLOCKS,
    VALUES_PER_GROUP,
    BlockMeans,
    fall_bounds,
    linear_fall,
)


def blocks_of(values):
    blocks = BlockMeans()
    for value in values:
        blocks.add(value)
    return blocks


@pytest.mark.parametrize("length", [512, 513, 520, 1100, 5000, 100_000])
def test_blocks_are_few_and_equally_long(length):
    """A ramp stays a line through every merge: block k has the mean of its own values."""
    blocks = blocks_of(map(float, range(length)))

    assert MAX_BLOCKS // 2 <= len(blocks.means) <= MAX_BLOCKS
    assert len(blocks.means) == length // blocks.values_per_block
    middles = [(k + 0.5) * blocks.values_per_block - 0.5 for k in range(len(blocks.means))]
    assert blocks.means == pytest.approx(middles)


def test_a_single_outlier_moves_no_block():
    values = [1.0] * 80
    values[13] = 1e9

    assert blocks_of(values).means == [1.0] * (80 // VALUES_PER_GROUP)


def test_add_returns_whether_a_block_is_complete():
    blocks = BlockMeans()

    assert [blocks.add(1.0) for _ in range(VALUES_PER_GROUP)] == [False] * (
        VALUES_PER_GROUP - 1
    ) + [True]


def test_the_fall_of_a_straight_line_is_exact():
    fall, error = linear_fall([3.0, 2.0, 1.0, 0.0])

    assert (fall, error) == pytest.approx((3.0, 0.0))


def test_the_error_matches_the_observed_variation():
    """Of many flat noisy series about 95 % have falls within two errors."""
    rng = Random(0)
    within = 0
    for _ in range(400):
        fall, error = linear_fall([rng.gauss(0.0, 1.0) for _ in range(16)])
        within += abs(fall) <= 2.15 * error

    assert 0.92 <= within / 400 <= 0.98


def test_two_points_have_an_infinite_error():
    assert linear_fall([1.0, 0.0])[1] == float("inf")


def test_values_whose_squares_overflow_have_an_infinite_error():
    means = [1e200, -1e200, 1e200, 1e199]
    assert linear_fall(means)[1] == float("inf")
    assert fall_bounds(means, 2.0) == (-float("inf"), float("inf"))


def test_the_error_allows_for_correlated_values():
    """Of many flat series correlated by 0.6 about 95 % have falls within two errors."""
    rng, within = Random(1), 0
    for _ in range(400):
        value, means = rng.gauss(0.0, 1.0), []
        for _ in range(64):
            value = 0.6 * value + rng.gauss(0.0, 0.8)
            means.append(value)
        lower, upper = fall_bounds(means, 2.0)
        within += lower <= 0.0 <= upper

    assert within / 400 >= 0.86
