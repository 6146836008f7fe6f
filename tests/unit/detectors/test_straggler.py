"""Tests of the detector straggler."""

import re
from math import sqrt
from random import Random

import pytest

from sentinel.detectors.straggler import Straggler
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.record import WHOLE_RUN, Event, Record, Spread
from sentinel.testing import event, first_finding, update_detector


def spread(row):
    mean = sum(row) / len(row)
    std = sqrt(sum((x - mean) ** 2 for x in row) / len(row))
    low, high = min(row), max(row)
    return Spread(len(row), mean, low, high, sum(row), std, row.index(low), row.index(high))


def step(number, step_time=1.0, **by_rank):
    spreads = {name: spread(row) for name, row in by_rank.items()}
    values = {"step_time": step_time} | {name: max(row) for name, row in by_rank.items()}
    return Record("run", WHOLE_RUN, number, float(number), Event.STEP, values, spread=spreads)


def waits(count, onset, longer, ranks=4):
    """From `onset` on, rank 2 waits `longer` seconds more for its data."""
    rng = Random(1)
    for number in range(count):
        row = [0.01 + 0.02 * rng.random() for _ in range(ranks)]
        row[2] += longer if number >= onset else 0.0
        yield step(number, 1.0 + max(row), data_wait=row)


def test_a_rank_that_waits_for_its_data_is_named_once_it_is_significant():
    record, finding = first_finding(Straggler(), waits(100, 50, 0.2))

    assert 50 + 24 <= record.step <= 50 + 32
    assert (finding.rank, finding.severity) == (2, None)
    assert finding.evidence["signal"] == "data_wait"
    assert finding.onset_step <= record.step


def test_one_that_costs_more_than_a_quarter_is_a_warning():
    _, finding = first_finding(Straggler(), waits(100, 50, 0.8))

    assert finding.severity is Severity.WARNING
    assert "Rank 2 waits longer for data than the other ranks" in finding.summary


def severities(records):
    detector = Straggler()
    outputs = [update_detector(detector, record) for record in records]
    return {output.severity for output in outputs if isinstance(output, Finding)}


def test_a_small_lag_is_a_warning_once_it_lasts():
    assert severities(waits(150, 80, 0.2)) == {None, Severity.WARNING}
    assert severities(waits(130, 80, 0.2)) == {None}


def test_a_rank_that_is_slower_from_the_start_is_info():
    assert severities(waits(400, 0, 0.2)) == {None}


def test_another_rank_each_time_is_clear():
    rng = Random(0)
    rows = ([rng.expovariate(1.0) for _ in range(4)] for _ in range(5000))
    records = (step(n, 10.0, generation_time=row, data_wait=row) for n, row in enumerate(rows))

    assert first_finding(Straggler(), records) == (None, None)


def test_ranks_that_wait_for_each_other_are_clear():
    detector = Straggler()
    outputs = [update_detector(detector, step(n, data_wait=[0.1] * 3)) for n in range(40)]

    assert outputs[0] is None
    assert outputs[-1] == Clear()


def test_a_single_rank_has_no_output():
    records = [step(n, data_wait=[5.0]) for n in range(40)]

    assert {update_detector(Straggler(), record) for record in records} == {None}


def test_a_new_start_resets_the_state():
    detector = Straggler()
    for record in waits(100, 50, 0.8):
        update_detector(detector, record)
    update_detector(detector, event(Event.START, 100, step_time=1.0))

    assert update_detector(detector, step(101, data_wait=[0.1, 0.1, 0.1])) is None


def computes(count, onset, longer, unit=1.0):
    """From `onset` on, rank 1 takes `longer` units more before its backward pass."""
    rng = Random(2)
    for number in range(count):
        row = [unit * (0.2 + 0.04 * rng.random()) for _ in range(2)]
        row[1] += longer * unit if number >= onset else 0.0
        yield step(number, 0.4 * unit + max(row), compute_time=row)


def test_a_rank_that_is_slower_in_computing_is_a_warning_within_thirty_slow_steps():
    record, finding = first_finding(Straggler(), computes(150, 80, 0.8))

    assert record.step <= 80 + 30
    assert (finding.rank, finding.severity) == (1, Severity.WARNING)
    assert finding.evidence["signal"] == "compute_time"
    assert "Rank 1 is slower in computing" in finding.summary


def test_a_rank_that_waits_for_another_with_slow_data_is_not_named():
    """Trainers that count tokens over all ranks meet before the backward pass."""
    rng = Random(3)

    def records():
        for number in range(120):
            slow = 0.5 + 0.1 * rng.random()
            data, computing = [0.01, slow], [0.05 + slow, 0.06]
            yield step(number, 1.0 + slow, data_wait=data, compute_time=computing)

    _, finding = first_finding(Straggler(), records())

    assert (finding.rank, finding.evidence["signal"]) == (1, "data_wait")


def test_a_rank_of_fast_steps_is_named_after_as_many_seconds():
    """Of 14 ms a step from the onset on."""
    record, finding = first_finding(Straggler(), computes(3_000, 1_000, 0.8, unit=0.01))

    assert 14.0 <= 0.0142 * (record.step - 1_000) <= 16.5
    assert (finding.rank, finding.severity) == (1, Severity.WARNING)
    assert finding.onset_step == pytest.approx(1_000, abs=150)


def contended(count, seconds, unit=0.05):
    """Another program delays one rank and then the other, each time for so many seconds."""
    for number in range(count):
        row = [0.3 * unit, 0.3 * unit]
        row[int(number * unit / seconds) % 2] += unit
        yield step(number, 0.7 * unit + max(row), compute_time=row)


@pytest.mark.parametrize("seconds", [0.2, 1.0, 3.0, 6.0])
def test_ranks_that_are_delayed_in_turn_are_clear(seconds):
    assert first_finding(Straggler(), contended(4_000, seconds)) == (None, None)


def small_lag(count, onset):
    """Rank 2 takes a tenth of each step of 1.1 s from the onset on."""
    return waits(count, onset, 0.1)


def test_a_tenth_of_the_time_is_a_warning_once_a_minute_is_lost():
    assert severities(small_lag(500, 80)) == {None}
    assert severities(small_lag(800, 80)) == {None, Severity.WARNING}


def test_the_cost_is_stated_in_hours_of_the_ranks_that_wait():
    _, finding = first_finding(Straggler(), waits(200, 100, 0.8))

    lag = finding.evidence["median_lag_share_of_step_time"]
    assert finding.evidence["rank_hours_lost_per_day"] == pytest.approx(24 * 3 * lag)
    assert re.search(r"by 4\d% of the step time, 0\.8\d? s a step\.$", finding.summary)


def test_ranks_whose_batches_differ_at_random_are_clear():
    rng = Random(4)
    records = (
        step(number, 1.0, compute_time=[rng.uniform(0.2, 0.9) for _ in range(4)])
        for number in range(400)
    )

    assert first_finding(Straggler(), records) == (None, None)
