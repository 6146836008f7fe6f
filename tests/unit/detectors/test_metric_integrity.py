"""Tests of the detector metric_integrity."""

from math import sqrt
from random import Random

import pytest

from sentinel.detectors.metric_integrity import MetricIntegrity
from sentinel.model.finding import Clear
from sentinel.model.record import WHOLE_RUN, Event, Record, Spread
from sentinel.testing import event, first_finding, update_detector


def run(count, logged, ranks=4, every=1, level=2.0, **declared):
    """Steps with a loss per rank; `logged` maps the ranks' last losses to the logged one."""
    rng, rows = Random(0), []
    yield event(Event.START, 0, **declared)
    for number in range(1, count + 1):
        row = [rng.gauss(level, 0.1 * level + 1e-3) for _ in range(ranks)]
        rows.append(row)
        mean = sum(row) / ranks
        std = sqrt(sum((x - mean) ** 2 for x in row) / ranks)
        low, high = min(row), max(row)
        spread = Spread(ranks, mean, low, high, sum(row), std, row.index(low), row.index(high))
        values = {"loss": mean}
        if number % every == 0:
            values["logged_loss"] = round(logged(rows), 4)
            rows = []
        yield Record(
            "run", WHOLE_RUN, number, float(number), Event.STEP, values, spread={"loss": spread}
        )


def mean_of(rows):
    return sum(sum(row) / len(row) for row in rows) / len(rows)


@pytest.mark.parametrize("every", [1, 10])
def test_a_mean_over_ranks_is_clear(every):
    records = [*run(400, mean_of, every=every, gradient_accumulation_steps=8.0)]
    outputs = [
        update_detector(detector, record) for detector in [MetricIntegrity()] for record in records
    ]

    assert outputs[-1] == Clear()
    assert set(map(type, outputs)) == {type(None), Clear}


@pytest.mark.parametrize("every", [1, 10])
def test_a_sum_over_micro_batches_is_named(every):
    records = run(400, lambda rows: 8 * mean_of(rows), every=every, gradient_accumulation_steps=8.0)
    record, finding = first_finding(MetricIntegrity(), records)

    assert record.step == 16 * every
    assert finding.summary == (
        "The logged loss is 8 times the mean loss of the ranks: "
        "the number of micro-batches per step."
    )


def test_a_mean_divided_twice_is_named():
    records = run(100, lambda rows: mean_of(rows) / 4)
    _, finding = first_finding(MetricIntegrity(), records)

    assert finding.summary.endswith("1 / the number of ranks.")


def test_the_loss_of_rank_0_alone_is_named():
    _, finding = first_finding(MetricIntegrity(), run(200, lambda rows: rows[-1][0]))

    assert finding.summary == ("The logged loss is that of rank 0, not the mean of the ranks.")


def test_a_loss_around_zero_is_not_evaluated():
    records = run(100, lambda rows: 8 * mean_of(rows), level=0.0, gradient_accumulation_steps=8.0)

    assert first_finding(MetricIntegrity(), records) == (None, None)


def test_a_factor_of_no_known_mistake_is_not_reported():
    assert first_finding(MetricIntegrity(), run(200, lambda rows: 1.7 * mean_of(rows)))[0] is None
