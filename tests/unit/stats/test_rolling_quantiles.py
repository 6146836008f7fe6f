"""Rolling quantiles equal those of the sorted window."""

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.stats.rolling_quantiles import RollingQuantiles

finite = st.floats(-1e6, 1e6)


@given(st.lists(finite, min_size=1, max_size=60), st.integers(1, 20))
def test_the_median_is_that_of_the_last_values(values, size):
    rolling = RollingQuantiles(size)
    for value in values:
        rolling.add(value)

    assert len(rolling) == min(size, len(values))
    assert rolling.median == pytest.approx(median(values[-size:]))


def test_sigma_ignores_outliers():
    rolling = RollingQuantiles(100)
    for value in [*range(-50, 51), 1e9]:
        rolling.add(float(value))

    assert rolling.sigma == pytest.approx(49.5 / 1.349, rel=0.02)


def test_an_empty_window_has_no_median():
    with pytest.raises(IndexError):
        _ = RollingQuantiles(4).median
