"""Tests of the change point of a fall."""

from random import Random

import pytest

from sentinel.stats.mean_fall import find_fall


def test_finds_the_cut_of_two_levels():
    fall = find_fall([1.0, 0.9, 1.1, 1.0, 0.2, 0.1, 0.3])

    assert fall.low_count == 3
    assert fall.before == pytest.approx(1.0)
    assert fall.after == pytest.approx(0.2)


@pytest.mark.parametrize("values", [[], [1.0] * 5, [1.0] * 20, [0.1 * n for n in range(20)]])
def test_there_is_no_fall_in_a_level_or_a_rise(values):
    assert find_fall(values) is None


def test_repeated_values_do_not_make_a_fall_infinitely_significant():
    assert find_fall([1.0] * 4 + [0.0] * 8).errors < 6.0


def test_correlated_noise_is_less_significant():
    rng, walk = Random(2), [0.0]
    for _ in range(59):
        walk.append(0.9 * walk[-1] + rng.gauss(0.0, 1.0))
    shuffled = Random(1).sample(walk, len(walk))
    stepped = [
        (x - 8.0 * (n >= 30), y - 8.0 * (n >= 30))
        for n, (x, y) in enumerate(zip(walk, shuffled, strict=True))
    ]

    assert find_fall([x for x, _ in stepped]).errors < find_fall([y for _, y in stepped]).errors
