"""Recent points: split late, they are the same as split at once."""

from __future__ import annotations

from collections import deque
from math import inf, isfinite, nan
from random import Random

import pytest

from sentinel.pipeline.recent_points import MAX_UNREAD_ROWS, RecentPoints

LAYOUTS = [("a",), ("a", "b"), ("b", "c"), ()]


@pytest.mark.parametrize("is_finite", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_points_are_the_newest_of_each_signal(seed, is_finite):
    rng, points, expected = Random(seed), RecentPoints(8, is_finite=is_finite), {}
    for step in range(4 * MAX_UNREAD_ROWS):
        names = LAYOUTS[rng.randrange(4) if step % 100 < 20 else step // 100]
        values = {name: rng.choice((1.0, 2.0, nan, inf)) for name in "abc"}
        points.add(step, values, names)
        for name in names:
            if isfinite(values[name]) or not is_finite:
                expected.setdefault(name, deque(maxlen=8)).append((step, values[name]))
        if rng.random() < 0.05:
            found = points.read()
            assert {n: repr(p) for n, p in found.items() if p} == {
                n: repr(p) for n, p in expected.items()
            }


def test_nothing_is_left_after_clear():
    points = RecentPoints(8)
    points.add(1, {"a": 1.0}, ("a",))
    points.clear()

    assert points.read() == {}


def test_few_rows_are_kept_unread():
    points = RecentPoints(8)
    for step in range(10 * MAX_UNREAD_ROWS):
        points.add(step, {"a": 1.0}, ("a",))

    assert len(points._rows) <= MAX_UNREAD_ROWS
