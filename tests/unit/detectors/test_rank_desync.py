"""Tests of the detector rank_desync."""

from dataclasses import replace
from random import Random

import pytest
from support.aligned_steps import combine_step

from sentinel.aggregate.combine import with_hosts
from sentinel.detectors.rank_desync import RankDesync
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.record import Event
from sentinel.testing import event, first_finding, update_detector


def norms(count, onset, factor, ranks=4):
    for step in range(count):
        norm = 1.0 + 0.1 * (step % 7)
        row = [norm] * ranks
        row[2] *= factor if step >= onset else 1.0
        yield combine_step(step, grad_norm=row)


def test_diverging_replicas_are_found_at_the_third_record_with_the_first_as_onset():
    record, finding = first_finding(RankDesync(), norms(60, 40, 1.01))

    assert (record.step, finding.onset_step, finding.rank) == (42, 40, 2)
    assert finding.severity is Severity.CRITICAL
    assert "differ in the gradient norm" in finding.summary


def test_rounding_of_another_summation_order_is_ignored():
    rng = Random(0)
    runs = (
        combine_step(n, grad_norm=[1 + rng.gauss(0, 1e-6) for _ in range(8)]) for n in range(2000)
    )

    assert first_finding(RankDesync(), runs) == (None, None)


def test_a_single_record_that_differs_is_ignored():
    records = [*norms(40, 99, 1.0), *norms(2, 0, 2.0), *norms(40, 99, 1.0)]

    assert first_finding(RankDesync(), records) == (None, None)


def test_ranks_that_always_differed_are_not_evaluated():
    """They are stages of a pipeline, or separate runs."""
    rng = Random(0)
    records = (combine_step(n, grad_norm=[rng.uniform(1, 2) for _ in range(4)]) for n in range(200))

    assert first_finding(RankDesync(), records) == (None, None)


def test_parts_of_one_gradient_are_not_compared():
    rng = Random(0)
    even = [combine_step(n, grad_norm_local=[1.0] * 4) for n in range(20)]
    records = [
        *even,
        *(combine_step(n, grad_norm_local=[rng.random() for _ in range(4)]) for n in range(99)),
    ]

    assert first_finding(RankDesync(), records) == (None, None)


def test_a_learning_rate_that_is_not_the_same_is_a_warning():
    records = [combine_step(n, learning_rate=[1e-4, 1e-4 if n < 20 else 9e-5]) for n in range(40)]
    record, finding = first_finding(RankDesync(), records)

    assert (record.step, finding.severity, finding.rank) == (22, None, None)
    assert finding.evidence["signal"] == "learning_rate"


def test_a_rank_one_step_behind_is_found():
    records = [combine_step(n, global_step=[n, n, n - (n >= 20)]) for n in range(40)]
    record, finding = first_finding(RankDesync(), records)

    assert record.step == 22
    assert finding.rank == 2


def test_it_clears_once_the_ranks_agree_again():
    detector = RankDesync()
    for record in norms(60, 40, 1.01):
        update_detector(detector, record)

    assert update_detector(detector, combine_step(61, grad_norm=[1.0] * 4)) == Clear()


def test_a_restart_resets_the_agreement():
    detector = RankDesync()
    for record in norms(40, 30, 1.5):
        last = update_detector(detector, record)
    update_detector(detector, event(Event.START, 40))

    assert isinstance(last, Finding)
    assert update_detector(detector, combine_step(41, grad_norm=[1.0, 1.0, 2.0, 1.0])) is None


def test_a_single_rank_has_no_output():
    records = [combine_step(n, grad_norm=[1.0]) for n in range(40)]

    assert {update_detector(RankDesync(), replace(record)) for record in records} == {None}


def differing_step(step, odd, ranks, value):
    """Norms of all replicas at one step; those in `odd` have `value`."""
    norm = 1.0 + 0.1 * (step % 7)
    return combine_step(step, grad_norm=[value * norm if r in odd else norm for r in range(ranks)])


def differing_run(odd, ranks, value, onset=80, count=100):
    for step in range(count):
        yield differing_step(step, odd if step >= onset else (), ranks, value)


def test_all_ranks_that_differ_from_the_majority_are_named_with_both_values():
    odd = (17, 40, 99, 1000)
    record, finding = first_finding(RankDesync(), differing_run(odd, 1024, 1.5, onset=8, count=20))

    assert (record.step, finding.rank) == (10, None)
    assert finding.evidence["differing_ranks"] == "17, 40, 99, 1000"
    assert finding.evidence["majority_value"] == 1.0 + 0.1 * (record.step % 7)
    assert "on ranks 17, 40, 99, 1000, 1.3 on the other 1020" in finding.summary


def test_hosts_of_differing_ranks_are_named_if_there_are_several():
    hosts = {rank: f"node-{rank // 2}" for rank in range(8)}
    records = (with_hosts(each, hosts) for each in differing_run((5,), 8, 1.5, onset=8, count=20))
    _, finding = first_finding(RankDesync(), records)

    assert "1.95 on rank 5 (node-2), 1.3 on the other 7" in finding.summary


def test_both_of_two_ranks_are_named_with_their_values_and_hosts():
    hosts = {0: "node-a", 1: "node-b"}
    records = (with_hosts(each, hosts) for each in differing_run((1,), 2, 1.5, onset=8, count=20))
    _, finding = first_finding(RankDesync(), records)

    assert finding.rank is None
    assert "1.3 on rank 0 (node-a), 1.95 on rank 1 (node-b)" in finding.summary


def test_both_halves_are_named_without_a_majority():
    """Two nodes of two ranks: which of them is wrong is unknown."""
    _, finding = first_finding(RankDesync(), differing_run((2, 3), 4, 1.5, onset=8, count=20))

    assert finding.rank is None
    assert finding.evidence["differing_ranks"] == "2-3"
    assert "1.95 on ranks 2-3, 1.3 on the other 2" in finding.summary


def test_replicas_that_were_bit_identical_are_reported_at_a_difference_of_one_bit():
    record, finding = first_finding(RankDesync(), differing_run((2,), 4, 1 + 2**-52))

    assert (record.step, finding.onset_step, finding.rank) == (95, 80, 2)
    assert finding.severity is None
    assert finding.evidence["highest_value"] != finding.evidence["lowest_value"]


def test_a_difference_that_grows_to_a_percent_is_critical():
    detector = RankDesync()
    for record in differing_run((2,), 4, 1 + 2**-40):
        warned = update_detector(detector, record)
    for step in range(100, 103):
        last = update_detector(detector, differing_step(step, (2,), 4, 1.01))

    assert (warned.severity, last.severity) == (None, Severity.CRITICAL)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_ranks_that_round_differently_are_clear(share):
    """GPUs of two models do."""
    rng = Random(1)
    rows = ((norm := rng.uniform(1, 2), norm * (1 + 6e-8 * (rng.random() < share)))
            for _ in range(2000))  # fmt: skip
    records = (combine_step(n, grad_norm=[a, b, a, b]) for n, (a, b) in enumerate(rows))

    assert first_finding(RankDesync(), records) == (None, None)


def test_constant_norms_after_clipping_are_not_evaluated():
    """Independent gradients, clipped to 1: equal until they are smaller than 1."""
    rng = Random(0)
    rows = ([min(1.0, rng.uniform(1.0, 2.0) - n / 200) for _ in range(4)] for n in range(200))
    records = (combine_step(n, grad_norm=row) for n, row in enumerate(rows))

    assert first_finding(RankDesync(), records) == (None, None)


def test_a_loss_scale_lowered_on_one_rank_is_a_warning():
    scales = ([65536.0, 65536.0, 65536.0 if n < 20 else 32768.0] for n in range(40))
    records = [combine_step(n, loss_scale=row) for n, row in enumerate(scales)]
    record, finding = first_finding(RankDesync(), records)

    assert (record.step, finding.rank, finding.evidence["majority_value"]) == (22, 2, 65536.0)


def test_loss_scales_of_independent_ranks_may_differ():
    rng = Random(0)
    rows = [([rng.random() for _ in range(4)], [2.0**16, 2.0**16, 2.0**16, 2.0**15])
            for _ in range(99)]  # fmt: skip
    records = (
        combine_step(n, grad_norm=norms, loss_scale=scales if n > 30 else [2.0**16] * 4)
        for n, (norms, scales) in enumerate(rows)
    )

    assert first_finding(RankDesync(), records) == (None, None)


def test_a_step_skipped_on_one_rank_is_found_by_its_optimizer_steps():
    records = [combine_step(n, optimizer_steps=[n, n - (n >= 20), n, n]) for n in range(40)]
    record, finding = first_finding(RankDesync(), records)

    assert (record.step, finding.rank) == (22, 1)
    assert "differ in the optimizer steps" in finding.summary


def test_large_counts_are_printed_with_enough_digits():
    records = [combine_step(n, global_step=[10**7 + n, 10**7 + n - (n >= 20)]) for n in range(40)]
    _, finding = first_finding(RankDesync(), records)

    assert "10000021 on rank 1, 10000022 on rank 0" in finding.summary


def replicas(rates_at, count=40, ranks=4, **more):
    """Steps of replicas with the same norm and their own losses; `rates_at` gives their rates."""
    rng = Random(0)
    for step in range(count):
        norm = 1.0 + 0.1 * (step % 7)
        losses = [rng.random() for _ in range(ranks)]
        values = {"grad_norm": [norm] * ranks, "loss": losses, **more}
        yield combine_step(step, learning_rate=rates_at(step), **values)


def test_a_learning_rate_that_differs_from_the_first_step_is_found_once_replicas_are_proven():
    record, finding = first_finding(RankDesync(), replicas(lambda _: [1e-3, 1e-3, 3e-3, 3e-3]))

    assert (record.step, finding.onset_step, finding.onset_range) == (7, 0, (0, 0))
    assert (finding.signal, finding.severity, finding.rank) == ("learning_rate", None, None)
    assert finding.evidence["differing_ranks"] == "2-3"
    assert (
        "Replicas of one model differ in the learning rate: 0.003 on ranks 2-3" in finding.summary
    )


def test_a_single_replica_with_another_learning_rate_from_the_first_step_is_named():
    _, finding = first_finding(RankDesync(), replicas(lambda n: [1 / (n + 9)] * 3 + [3 / (n + 9)]))

    assert (finding.rank, finding.evidence["differing_ranks"]) == (3, "3")


def test_a_learning_rate_reported_one_step_later_is_no_difference():
    """The first rank reports that of its scheduler after the step, the others that of the step."""
    assert first_finding(
        RankDesync(), replicas(lambda n: [1e-3 * 0.99 ** (n + 1), *[1e-3 * 0.99**n] * 3])
    ) == (None, None)


def test_a_learning_rate_that_one_rank_rounds_is_no_difference():
    assert first_finding(
        RankDesync(), replicas(lambda n: [round(1e-4 / (n + 3), 7), *[1e-4 / (n + 3)] * 3])
    ) == (None, None)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"grad_norm": [1.0, 2.0, 3.0, 4.0]}, id="parts of the gradient"),
        pytest.param({"grad_norm": [1.0] * 4}, id="norms after clipping"),
        pytest.param({"loss": [1.0, 2.0, 3.0]}, id="a pipeline stage without a loss"),
        pytest.param({"loss": []}, id="no loss"),
    ],
)
def test_learning_rates_of_ranks_that_are_not_known_as_replicas_may_differ(values):
    """FSDP with norms of parts; stages whose first parameter groups differ."""
    records = replicas(lambda _: [1e-3, 1e-3, 3e-3, 3e-3], **values)

    assert first_finding(RankDesync(), records) == (None, None)


def test_other_values_of_replicas_may_differ_from_the_start():
    """Steps that each rank counts in its way, and a coefficient that each adapts to its data."""
    records = replicas(lambda _: [1e-3] * 4, global_step=[0, 1, 2, 3], kl_coef=[0.1, 0.2, 0.3, 0.4])

    assert first_finding(RankDesync(), records) == (None, None)
