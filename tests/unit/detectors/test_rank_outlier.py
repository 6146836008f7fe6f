"""Tests of the detector rank_outlier."""

from math import sqrt
from random import Random

import pytest

from sentinel.detectors.rank_outlier import RankOutlier
from sentinel.model.finding import Clear
from sentinel.model.record import WHOLE_RUN, Event, Record, Spread
from sentinel.testing import first_finding, update_detector


def step(number, name, row):
    mean = sum(row) / len(row)
    std = sqrt(sum((x - mean) ** 2 for x in row) / len(row))
    low, high = min(row), max(row)
    spread = Spread(len(row), mean, low, high, sum(row), std, row.index(low), row.index(high))
    return Record(
        "run", WHOLE_RUN, number, float(number), Event.STEP, {name: mean}, spread={name: spread}
    )


def run(count, name="loss", *, ranks=8, onset=10**9, change=lambda x: x):
    rng = Random(3)
    for number in range(count):
        row = [rng.gauss(2.0, 0.1) for _ in range(ranks)]
        row[5 % ranks] = change(row[5 % ranks]) if number >= onset else row[5 % ranks]
        yield step(number, name, row)


@pytest.mark.parametrize("change", [lambda _: 0.0, lambda x: 3 * x], ids=["empty", "broken"])
@pytest.mark.parametrize("name", ["loss", "reward"])
def test_a_rank_far_from_all_others_is_named(name, change):
    record, finding = first_finding(RankOutlier(), run(200, name, onset=100, change=change))

    assert 100 + 12 <= record.step <= 100 + 16
    assert finding.rank == 5
    assert finding.evidence["signal"] == name
    assert finding.evidence["mean_of_others"] == pytest.approx(2.0, abs=0.2)


def test_equal_ranks_are_clear():
    outputs = [
        update_detector(detector, record) for detector in [RankOutlier()] for record in run(3000)
    ]

    assert set(map(type, outputs)) == {type(None), Clear}


def test_a_slightly_harder_shard_is_clear():
    assert first_finding(RankOutlier(), run(500, onset=0, change=lambda x: 1.3 * x)) == (None, None)


def test_three_ranks_are_too_few_to_name_an_outlier():
    records = run(200, ranks=3, onset=0, change=lambda x: 9 * x)

    assert first_finding(RankOutlier(), records) == (None, None)


def test_a_loss_on_the_last_pipeline_stage_only_is_clear():
    records = (step(n, "loss", [0.0, 0.0, 0.0, 0.0, 2.0]) for n in range(100))

    assert first_finding(RankOutlier(), records) == (None, None)


def test_a_loss_near_zero_by_design_is_not_evaluated():
    start = Record("run", WHOLE_RUN, 0, 0.0, Event.START, attributes={"algorithm": "grpo"})

    assert (
        first_finding(RankOutlier(), [start, *run(200, onset=0, change=lambda _: 9.0)])[0] is None
    )
