"""The sum of learning rates, or a count of records without them."""

from math import nan

import pytest

from sentinel.stats.cumulative_lr import WARMUP_SETTLED_RECORDS, CumulativeLearningRate


def sums(rates):
    total_rate = CumulativeLearningRate()
    return [total_rate.add(rate) for rate in rates]


def test_sums_the_rates():
    assert sums([0.1, 0.2, 0.0]) == pytest.approx([0.1, 0.3, 0.3])


@pytest.mark.parametrize("missing", [None, nan, -1.0, 1e300])
def test_a_record_without_a_usable_rate_counts_with_the_one_before(missing):
    assert sums([0.5, missing, 0.25]) == pytest.approx([0.5, 1.0, 1.25])


def test_a_run_without_an_initial_rate_counts_records():
    """Later rates have another unit than the count so far."""
    assert sums([None, 1e-6, 1e-6]) == [1.0, 2.0, 3.0]


def test_a_rate_may_grow_during_warm_up():
    total_rate = CumulativeLearningRate()
    for rate in (1.0, 2.0, 3.0):
        total_rate.add(rate)

    assert total_rate.total == 6.0


def test_a_rate_set_too_high_after_the_warm_up_counts_as_the_peak():
    """The peak does not rise if the rate stays high."""
    total_rate = CumulativeLearningRate()
    for _ in range(1 + WARMUP_SETTLED_RECORDS):
        total_rate.add(1.0)
    before = total_rate.total
    for _ in range(100):
        total_rate.add(300.0)

    assert total_rate.total == before + 100.0


def test_rates_that_the_log_rounds_to_zero_count_records():
    cumulative = CumulativeLearningRate()
    totals = [cumulative.add(0.0) for _ in range(40)]

    assert totals[:16] == [0.0] * 16
    assert totals[-1] == 24.0


def test_a_warm_up_that_begins_at_zero_sums_rates():
    cumulative = CumulativeLearningRate()
    totals = [cumulative.add(rate) for rate in [0.0] * 4 + [1e-6] * 10]

    assert totals[-1] == pytest.approx(1e-5)
