"""Tests of the cause ranks_out_of_step."""

from __future__ import annotations

from random import Random

import pytest
from support.aligned_steps import combine_step
from support.diagnoses import diagnose, diagnose_run, make_context

from sentinel.causes.ranks_out_of_step import RanksOutOfStep
from sentinel.model.finding import Severity


def replicas(seed, *, norm=1.0, loss=1.0, rate=1.0, count=200, onset=100):
    """Eight ranks; from `onset` on, values of the sixth are multiplied by these factors."""
    rng = Random(seed)
    for step in range(1, count + 1):
        losses = [2.0 / (1 + step / 50) ** 0.3 * rng.gauss(1.0, 0.05) for _ in range(8)]
        norms, rates = [0.8 + 0.1 * (step % 7)] * 8, [1e-5] * 8
        if step >= onset:
            losses[5], norms[5], rates[5] = losses[5] * loss, norms[5] * norm, rates[5] * rate
        yield combine_step(step, loss=losses, grad_norm=norms, learning_rate=rates)


@pytest.mark.parametrize("seed", range(3))
def test_a_diverging_replica_is_one_case(seed):
    replay = diagnose_run(replicas(seed, norm=1.3, loss=3.0))

    assert replay.causes == ["ranks_out_of_step"]
    (case,) = replay.cases.values()
    assert case.incident.severity is Severity.CRITICAL
    assert [each.key.detector for each in case.others] == ["rank_outlier"]
    assert "On rank 5" in case.diagnosis.remedy
    assert "no_sync" in case.diagnosis.remedy


def test_a_differing_learning_rate_has_its_own_remedy():
    (case,) = diagnose_run(replicas(1, rate=0.5)).cases.values()

    assert case.diagnosis.cause == "ranks_out_of_step"
    assert "look for another configuration" in case.diagnosis.remedy


def test_ranks_that_were_never_equal_have_no_checkpoint_to_resume_from():
    records = (
        combine_step(n, loss=[1.0] * 4, grad_norm=[1 + n / 9] * 4, learning_rate=[0.1] * 3 + [0.3])
        for n in range(1, 40)
    )
    (case,) = diagnose_run(records).cases.values()

    assert case.diagnosis.cause == "ranks_out_of_step"
    assert "Start the run again with one configuration" in case.diagnosis.remedy
    assert "On rank 3 look for another configuration" in case.diagnosis.remedy


def test_a_shard_of_bad_samples_has_no_cause():
    assert diagnose_run(replicas(1, loss=3.0)).causes == [""]


def test_a_logged_loss_that_is_a_sum_has_another_cause():
    context = make_context(metric_integrity=10, rank_outlier=20)

    assert diagnose(context, {"it": RanksOutOfStep()}) is None


def test_a_differing_loss_scale_has_its_own_remedy():
    records = (
        combine_step(
            n, loss=[1.0] * 4, loss_scale=[2.0**16] * 2 + [2.0**15 if n > 50 else 2.0**16] * 2
        )
        for n in range(1, 100)
    )
    (case,) = diagnose_run(records).cases.values()

    assert case.diagnosis.cause == "ranks_out_of_step"
    assert (
        "Compare ranks 2-3 with the others, and look for a gradient that overflows"
        in case.diagnosis.remedy
    )


def test_the_remedy_names_all_diverging_ranks():
    records = (
        combine_step(n, grad_norm=[1 + n / 99] * 6 + [(1 + n / 99) * (1.5 if n > 50 else 1.0)] * 2)
        for n in range(1, 100)
    )
    (case,) = diagnose_run(records).cases.values()

    assert "On ranks 6-7 look for a backward pass" in case.diagnosis.remedy
