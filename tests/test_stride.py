"""Stride: how far one counter goes per step of another."""

from sentinel.stats.stride import Stride


def stride_of(pairs):
    stride = Stride(size=4)
    for counter, per in pairs:
        stride.add(counter, per)
    return stride.value


def test_a_counter_that_moves_twice_has_stride_two():
    assert stride_of((2.0 * n, float(n)) for n in range(10)) == 2.0


def test_too_few_pairs_and_a_standing_divisor_say_nothing():
    assert stride_of([(0.0, 0.0), (2.0, 1.0)]) is None
    assert stride_of([(float(n), 1.0) for n in range(8)]) is None


def test_a_counter_that_starts_again_starts_a_new_stride():
    assert stride_of([(9.0, 9.0), (0.0, 0.0), (3.0, 1.0), (6.0, 2.0)]) is None


def test_nothing_seen_says_nothing():
    assert stride_of([]) is None
