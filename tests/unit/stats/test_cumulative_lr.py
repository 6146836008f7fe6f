"""Travel: the sum of learning rates, or a count where there are none."""

from math import nan

import pytest

from sentinel.stats.cumulative_lr import WARMUP_SETTLED_RECORDS, CumulativeLearningRate


def way(rates):
    travel = CumulativeLearningRate()
    return [travel.add(rate) for rate in rates]


def test_sums_the_rates():
    assert way([0.1, 0.2, 0.0]) == pytest.approx([0.1, 0.3, 0.3])


@pytest.mark.parametrize("missing", [None, nan, -1.0, 1e300])
def test_a_record_without_a_usable_rate_moves_by_the_one_before(missing):
    assert way([0.5, missing, 0.25]) == pytest.approx([0.5, 1.0, 1.25])


def test_a_run_without_a_rate_at_first_counts_records_throughout():
    """Rates that come later are of another unit than the count so far."""
    assert way([None, 1e-6, 1e-6]) == [1.0, 2.0, 3.0]


def test_a_rate_may_grow_while_it_warms_up():
    travel = CumulativeLearningRate()
    for rate in (1.0, 2.0, 3.0):
        travel.add(rate)

    assert travel.total == 6.0


def test_a_rate_set_too_high_after_the_warm_up_counts_as_the_peak():
    """Nor does it raise the peak by staying."""
    travel = CumulativeLearningRate()
    for _ in range(1 + WARMUP_SETTLED_RECORDS):
        travel.add(1.0)
    before = travel.total
    for _ in range(100):
        travel.add(300.0)

    assert travel.total == before + 100.0
