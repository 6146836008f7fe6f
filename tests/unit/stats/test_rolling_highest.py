"""The rolling k-th highest value equals that of the sorted window."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.stats.rolling_highest import RollingHighest


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60),
    st.integers(1, 4),
    st.integers(4, 20),
)
def test_the_level_is_the_kth_highest_of_the_last_values(values, rank, size):
    highest = RollingHighest(rank=rank, size=size, min_values=rank)
    for value in values:
        highest.add(value)

    window = sorted(values[-size:], reverse=True)
    assert (len(highest), highest.maximum) == (len(window), window[0])
    assert highest.level == (window[rank - 1] if len(window) >= rank else None)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.integers(1, 5))
def test_the_window_stays_behind_by_the_lag(values, lag):
    behind, all_values = RollingHighest(1, 10, 1, lag=lag), RollingHighest(1, 10, 1)
    for value in values:
        behind.add(value)
    for value in values[: max(0, len(values) - min(lag, len(values) // 3))]:
        all_values.add(value)

    assert behind.level == all_values.level
    assert behind.maximum == max(values[-10 - min(lag, len(values) // 3) :])


def test_a_lag_over_half_of_the_window_is_refused():
    with pytest.raises(ValueError, match="at most half of the size 10: 6"):
        RollingHighest(1, 10, lag=6)


def test_there_is_no_level_before_enough_values():
    highest = RollingHighest()
    for count in range(1, 9):
        assert highest.level is None
        highest.add(float(count))

    assert highest.level == 6.0


def test_a_few_outliers_and_a_second_lower_mode_do_not_change_the_level():
    highest = RollingHighest()
    for index in range(64):
        highest.add(1.0 if index % 4 == 0 else 0.0)
    highest.add(1000.0)
    highest.add(2000.0)

    assert highest.level == 1.0


def test_infinity_is_the_highest_value():
    highest = RollingHighest(rank=1, size=4, min_values=1)
    for value in (1.0, float("inf"), 2.0):
        highest.add(value)

    assert highest.level == float("inf")
