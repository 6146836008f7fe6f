"""Tests of the guard of a level."""

from random import Random

import pytest

from sentinel.stats.level_guard import LevelGuard


def first_beyond(guard, values):
    """The number of the first value at which the level is beyond; None if it never is."""
    for number, value in enumerate(values, start=1):
        guard.update(value, number)
        if guard.is_beyond:
            return number
    return None


def shifted(before, after, count=200):
    """Values around one level and then another."""
    rng = Random(3)
    return [
        (before if n < count / 2 else after) * rng.lognormvariate(0, 0.05) for n in range(count)
    ]


@pytest.mark.parametrize(("sign", "after"), [(1, 3.0), (-1, 0.3)])
def test_a_shift_by_more_than_the_factor_is_found_with_its_onset(sign, after):
    guard = LevelGuard(sign, 2.0, least=1e-6)

    assert 100 < first_beyond(guard, shifted(1.0, after)) <= 110
    assert guard.usual == pytest.approx(1.0, rel=0.1)
    assert 100 <= guard.onset <= 103


@pytest.mark.parametrize("after", [1.5, 0.2])
def test_a_smaller_shift_or_one_the_other_way_is_none(after):
    assert first_beyond(LevelGuard(1, 2.0, least=1e-6), shifted(1.0, after)) is None


def test_a_slow_change_is_found_at_twice_the_margin_from_the_best_level():
    ramp = [n / 2000 for n in range(2000)]

    found = first_beyond(LevelGuard(1, 0.2), ramp)
    assert ramp[found] == pytest.approx(0.4, abs=0.03)


def test_a_shift_that_does_not_matter_is_none():
    values = shifted(1.0, 3.0)

    assert first_beyond(LevelGuard(1, 2.0, 4.0, least=1e-6), values) is None
    assert first_beyond(LevelGuard(1, 2.0, 2.0, least=1e-6), values) is not None


def test_a_level_past_the_limit_is_found_without_a_shift():
    guard = LevelGuard(1, 0.3, limit=0.5)

    assert first_beyond(guard, [0.6] * 80) == 65
    assert guard.usual is None


def test_it_ends_when_the_level_is_back():
    guard = LevelGuard(1, 2.0, least=1e-6)
    values, found = [1.0] * 100 + [5.0] * 20 + [1.0] * 30, []
    for number, value in enumerate(values):
        guard.update(value, number)
        found.append(guard.is_beyond)

    assert any(found[100:120])
    assert not found[-1]
