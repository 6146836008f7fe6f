"""Tests of the count of the distinct steps of a replay, and of the memory it takes."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.pipeline.replay import DistinctStepCounter


def counted(steps):
    counter = DistinctStepCounter()
    for step in steps:
        counter.add(step)
    return counter.count


@given(st.lists(st.integers(-3000, 3000) | st.integers(-(2**53), 2**53)))
def test_any_steps_are_counted_once(steps):
    assert counted(steps) == len({*steps})


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 9), st.integers(1, 40)), max_size=6))
def test_ranges_that_overlap_are_counted_once(ranges):
    """As of a run that is resumed, or of two writers."""
    steps = [first + distance * n for first, distance, count in ranges for n in range(count)]
    assert counted(steps) == len({*steps})


@pytest.mark.fault("X12")
def test_a_long_replay_counts_its_steps_in_little_memory():
    randomness = random.Random(1)
    tracemalloc.start()
    counted(range(0, 2048 * 100_000, 2048))
    counted(step * 2048 + randomness.randrange(2000) for step in range(100_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 2_000_000
