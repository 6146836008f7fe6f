"""Tests of the detector straggler."""

from math import sqrt
from random import Random

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


def computes(count, onset, longer, ranks=2):
    """From `onset` on, rank 1 takes `longer` seconds more before its backward pass."""
    rng = Random(2)
    for number in range(count):
        row = [0.05 + 0.01 * rng.random() for _ in range(ranks)]
        row[1] += longer if number >= onset else 0.0
        yield step(number, 0.1 + max(row), compute_time=row)


def test_a_rank_that_is_slower_in_computing_is_a_warning_within_thirty_slow_steps():
    record, finding = first_finding(Straggler(), computes(150, 80, 0.2))

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


def test_ranks_whose_batches_differ_at_random_are_clear():
    rng = Random(4)
    records = (
        step(number, 1.0, compute_time=[rng.uniform(0.2, 0.9) for _ in range(4)])
        for number in range(400)
    )

    assert first_finding(Straggler(), records) == (None, None)
