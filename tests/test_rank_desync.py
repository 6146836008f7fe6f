"""Rank desync: replicas that part are told at once, and ranks that never were alike are not."""

from dataclasses import replace
from random import Random

from lockstep import together as told

from sentinel.detectors.rank_desync import RankDesync
from sentinel.finding import Calm, Finding, Severity
from sentinel.record import Event
from sentinel.testing import event, first_finding, show


def norms(count, onset, factor, ranks=4):
    for step in range(count):
        norm = 1.0 + 0.1 * (step % 7)
        row = [norm] * ranks
        row[2] *= factor if step >= onset else 1.0
        yield told(step, grad_norm=row)


def test_replicas_that_part_are_told_at_the_third_record_and_dated_at_the_first():
    record, finding = first_finding(RankDesync(), norms(60, 40, 1.01))

    assert (record.step, finding.onset_step, finding.rank) == (42, 40, 2)
    assert finding.severity is Severity.CRITICAL
    assert "grad_norm differs" in finding.summary


def test_the_noise_of_a_sum_in_another_order_is_nothing():
    rng = Random(0)
    runs = (told(n, grad_norm=[1 + rng.gauss(0, 1e-6) for _ in range(8)]) for n in range(2000))

    assert first_finding(RankDesync(), runs) == (None, None)


def test_a_single_record_that_differs_is_nothing():
    records = [*norms(40, 99, 1.0), *norms(2, 0, 2.0), *norms(40, 99, 1.0)]

    assert first_finding(RankDesync(), records) == (None, None)


def test_ranks_that_never_were_alike_prove_nothing():
    """Stages of a pipeline, or a run for each rank."""
    rng = Random(0)
    records = (told(n, grad_norm=[rng.uniform(1, 2) for _ in range(4)]) for n in range(200))

    assert first_finding(RankDesync(), records) == (None, None)


def test_parts_of_one_gradient_are_not_compared():
    rng = Random(0)
    even = [told(n, grad_norm_local=[1.0] * 4) for n in range(20)]
    records = [
        *even,
        *(told(n, grad_norm_local=[rng.random() for _ in range(4)]) for n in range(99)),
    ]

    assert first_finding(RankDesync(), records) == (None, None)


def test_a_learning_rate_that_is_not_the_same_is_a_warning():
    records = [told(n, learning_rate=[1e-4, 1e-4 if n < 20 else 9e-5]) for n in range(40)]
    record, finding = first_finding(RankDesync(), records)

    assert (record.step, finding.severity, finding.rank) == (22, None, None)
    assert finding.evidence["signal"] == "learning_rate"


def test_a_rank_that_is_a_step_behind_is_told():
    records = [told(n, global_step=[n, n, n - (n >= 20)]) for n in range(40)]
    record, finding = first_finding(RankDesync(), records)

    assert record.step == 22
    assert finding.rank == 2


def test_it_is_over_once_the_ranks_are_alike_again():
    detector = RankDesync()
    for record in norms(60, 40, 1.01):
        show(detector, record)

    assert show(detector, told(61, grad_norm=[1.0] * 4)) == Calm()


def test_a_restart_has_to_prove_it_anew():
    detector = RankDesync()
    for record in norms(40, 30, 1.5):
        last = show(detector, record)
    show(detector, event(Event.START, 40))

    assert isinstance(last, Finding)
    assert show(detector, told(41, grad_norm=[1.0, 1.0, 2.0, 1.0])) is None


def test_one_rank_alone_says_nothing():
    records = [told(n, grad_norm=[1.0]) for n in range(40)]

    assert {show(RankDesync(), replace(record)) for record in records} == {None}
