"""Tests of the detector data_stall."""

from random import Random

import pytest
from support.aligned_steps import combine_step

from sentinel.detectors.data_stall import DataStall
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.record import Event
from sentinel.testing import event, first_finding, steps, update_detector


def run(count, onset, wait, before=0.02):
    """Steps of 1 s of work; from the onset on, each waits `wait` seconds for data."""
    rng = Random(0)
    waits = [(wait if n >= onset else before) * rng.uniform(0.8, 1.2) for n in range(count)]
    return steps(data_wait=waits, step_time=[1 + w for w in waits])


def test_a_loader_that_falls_behind_is_a_warning_dated_at_its_first_step():
    record, finding = first_finding(DataStall(), run(200, 100, 3.0))

    assert 100 + 15 <= record.step <= 100 + 18
    assert finding.severity is Severity.WARNING
    assert finding.onset_step == 101
    assert "71% of the step time, which is 3.4 times the best; " in finding.summary


def test_a_loader_that_was_always_slow_is_info():
    _, finding = first_finding(DataStall(), run(200, 0, 3.0))

    assert finding.severity is None


def test_a_fast_loader_is_clear():
    outputs = [
        update_detector(detector, r) for detector in [DataStall()] for r in run(200, 999, 0.0)
    ]

    assert outputs[0] is None
    assert set(outputs[40:]) == {Clear()}


def test_slow_first_batches_of_an_epoch_are_ignored():
    waits = [9.0 if n % 50 < 5 else 0.01 for n in range(1000)]
    records = steps(data_wait=waits, step_time=[1 + w for w in waits])

    assert first_finding(DataStall(), records) == (None, None)


def test_a_slower_step_that_does_not_wait_is_no_stall():
    times = [1.0 if n < 100 else 9.0 for n in range(300)]

    assert first_finding(DataStall(), steps(data_wait=[0.1] * 300, step_time=times))[0] is None


def test_a_step_with_an_evaluation_is_ignored():
    detector, outputs = DataStall(), []
    for record in run(200, 100, 3.0):
        if record.step >= 100:
            update_detector(detector, event(Event.EVAL, record.step))
        outputs.append(update_detector(detector, record))

    assert not any(isinstance(output, Finding) for output in outputs)


def waits_by_rank(late, ranks=8, onset=100):
    """Steps of 1 s of work; from the onset on, the ranks of `late` wait 3 s, and all for them."""
    rng = Random(0)
    for step in range(1, 201):
        row = [
            (3.0 if rank in late and step >= onset else 0.02) * rng.uniform(0.8, 1.2)
            for rank in range(ranks)
        ]
        yield combine_step(step, data_wait=row, step_time=[1 + max(row)] * ranks)


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_a_wait_of_one_rank_is_left_to_the_detector_that_names_it(ranks):
    assert first_finding(DataStall(), waits_by_rank([1], ranks)) == (None, None)


@pytest.mark.parametrize("late", [[3, 4], range(4), range(8)])
def test_a_wait_of_several_ranks_is_a_warning(late):
    record, finding = first_finding(DataStall(), waits_by_rank(late))

    assert record.step <= 100 + 18
    assert finding.severity is Severity.WARNING
    assert finding.rank is None


def waits_by_chance(ranks, share, seed=0, onset=100, count=400):
    """Steps of 0.5 s of work; from the onset on, each rank waits 1 s in that share of the steps."""
    rng = Random(seed)
    for step in range(1, count + 1):
        is_slow = step >= onset
        row = [(is_slow and rng.random() < share) + rng.uniform(0.001, 0.005) for _ in range(ranks)]
        yield combine_step(step, data_wait=row, step_time=[0.5 + max(row)] * ranks)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("ranks", "share"), [(2, 0.5), (8, 0.12), (64, 0.02)])
def test_a_wait_of_another_rank_at_each_step_is_a_warning(ranks, share, seed):
    """Storage that is slow for one file in eight is slow for one of the ranks at most steps."""
    record, finding = first_finding(DataStall(), waits_by_chance(ranks, share, seed))

    assert record.step <= 100 + 64
    assert finding.severity is Severity.WARNING
    assert finding.rank is None
    assert finding.evidence["data_wait_share"] > 0.6


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_a_rank_that_mostly_waits_longest_is_left_to_the_detector_that_names_it(ranks):
    """In one step of eight another rank waits instead."""
    rng = Random(1)
    records = []
    for step in range(1, 400):
        late = 1 if step % 8 else rng.randrange(ranks)
        is_slow = step >= 100
        row = [(3.0 if rank == late and is_slow else 0.02) for rank in range(ranks)]
        records.append(combine_step(step, data_wait=row, step_time=[1 + max(row)] * ranks))

    assert first_finding(DataStall(), records) == (None, None)
