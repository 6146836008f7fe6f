"""Tests of the cause numerical_breakdown."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
import torch
from support.diagnoses import decaying_loss, diagnose_run
from support.grpo_runs import COUNT, ONSET, TRL, grpo_run, records
from support.tiny_trainings import Training

from sentinel.model.finding import Severity
from sentinel.testing import steps

HALF = {"framework": "transformers", "fp16": "true"}


def test_half_precision_that_overflows_is_diagnosed():
    replay = diagnose_run(Training(dtype=torch.float16, count=40).records(), HALF)

    assert replay.causes == ["numerical_breakdown"]
    (case,) = replay.cases.values()
    assert case.incident.severity is Severity.CRITICAL
    assert "float16" in case.diagnosis.evidence[-1].text
    assert "`bf16`" in case.diagnosis.remedy


def test_a_run_in_float32_is_not_advised_to_leave_float16():
    for settings in ({"framework": "transformers"}, {"mixed_precision": "bf16"}, {"fp16": "false"}):
        (case,) = diagnose_run(exploding(0), settings).cases.values()
        assert case.diagnosis.cause == "numerical_breakdown"
        assert "float16" not in case.diagnosis.remedy
        assert "float16" not in case.incident.remedy


def exploding(seed, overflow=240):
    """Norms that grow by a tenth per step from step 200 on, and overflow at step `overflow`.

    The loss rises with them: norms that grow while the loss falls are learning.
    """
    rng = np.random.default_rng(seed)
    since = np.maximum(np.arange(300) - 200, 0)
    norm = rng.lognormal(0, 0.2, 300) * 1.1**since
    loss = decaying_loss(seed, 300) * 1.01**since
    norm[overflow:], loss[overflow:] = inf, nan
    return steps(loss=loss.tolist(), grad_norm=norm.tolist())


@pytest.mark.parametrize("seed", range(5))
def test_gradients_that_grow_until_they_overflow_are_one_case(seed):
    replay = diagnose_run(exploding(seed))

    assert replay.causes == ["numerical_breakdown"]
    (case,) = replay.cases.values()
    assert case.incident.key.detector == "grad_explosion"
    assert [item.step for item in case.diagnosis.evidence][-1] == 241


def test_an_exhausted_loss_scale_is_evidence():
    count = 120
    scale = [65536.0 * 0.5 ** min(max(n - 60, 0), 20) for n in range(count)]
    loss = [*decaying_loss(0, 80).tolist(), *[nan] * 40]

    assert diagnose_run(steps(loss=loss, loss_scale=scale)).causes == ["numerical_breakdown"]


def test_masked_labels_have_another_cause():
    assert diagnose_run(Training(labels="masked", count=40).records(), HALF).causes == [
        "labels_masked"
    ]


def test_a_norm_that_a_loss_scaler_skipped_is_no_case():
    norms = [inf if n == 50 else 1.0 for n in range(120)]

    assert (
        diagnose_run(steps(loss=decaying_loss(0, 120).tolist(), grad_norm=norms), HALF).causes == []
    )


def test_a_recurrent_network_that_explodes_in_its_first_steps_is_diagnosed():
    """The norm and the loss of the second step show it before both are NaN."""
    losses, norms = [146.0, 1.13e9, *[nan] * 20], [1.02e5, 2.07e11, *[nan] * 20]
    replay = diagnose_run(steps(loss=losses, grad_norm=norms), {})

    assert replay.causes == ["numerical_breakdown"]


def exclaiming(lost, after=None, seed=1):
    """A policy whose signals are `lost` (name: value) from the onset on, or `after` a record.

    From the next record on it writes one token until the limit, and earns nothing.
    """
    run = grpo_run(seed) | {"loss": 0.01 * decaying_loss(seed, COUNT)}
    broken = {"completion_length": 1024.0, "truncated_fraction": 1.0, "reward": 0.0}
    broken |= {"reward_std": 0.0, "frac_zero_std": 1.0, **(after or {})}
    for values, onset in ((lost, ONSET), (broken, ONSET + 1)):
        for name, value in values.items():
            run[name] = np.concatenate([run[name][:onset], np.full(COUNT - onset, value)])
    return run


EXCLAIMING = {
    "all values": exclaiming({"loss": nan, "grad_norm": nan, "kl_ref": nan, "entropy": nan}),
    "a loss of 0": exclaiming({"loss": 0.0, "grad_norm": nan, "kl_ref": nan}),
    "the norm": exclaiming({"grad_norm": nan}),
    "the KL": exclaiming({"kl_ref": nan}),
    "the norm once, then 0": exclaiming({"grad_norm": nan}, {"grad_norm": 0.0, "loss": 0.0}),
    "all values once, then 0": exclaiming(
        {"loss": nan, "grad_norm": nan, "kl_ref": nan},
        {"loss": 0.0, "grad_norm": 0.0, "kl_ref": 0.0, "entropy": 0.0},
    ),
}


@pytest.mark.parametrize("run", EXCLAIMING.values(), ids=EXCLAIMING)
def test_a_policy_that_writes_one_token_after_a_nan_is_one_case(run):
    replay = diagnose_run(records(run), TRL | {"max_completion_length": 1024.0})

    assert list(replay.named_causes) == replay.causes == ["numerical_breakdown"]
    (case,) = replay.cases.values()
    assert case.diagnosis.evidence[0].text.startswith("NaN or infinite")
    assert case.onset_step == ONSET + 1


def test_completions_that_grow_without_a_nan_have_another_cause():
    run = exclaiming({})

    assert diagnose_run(records(run), TRL).causes == ["policy_collapse"]


@pytest.mark.parametrize("before", [3, 100])
def test_a_single_nan_that_training_survived_does_not_take_a_later_case(before):
    run = exclaiming({})
    run["grad_norm"][ONSET - before] = nan

    assert diagnose_run(records(run), TRL).causes == ["policy_collapse"]


def test_a_nan_at_the_end_of_a_collapse_is_a_case_of_its_own():
    run = exclaiming({"entropy": 1e-4})
    run["grad_norm"][ONSET + 60 :] = run["loss"][ONSET + 60 :] = nan
    replay = diagnose_run(records(run), TRL)

    assert replay.causes == ["policy_collapse", "numerical_breakdown"]
    assert [each.incident.key.detector for each in replay.cases.values()][1] == "nan_or_inf"


@pytest.mark.parametrize(("before", "expected"), [(1.4, "numerical_breakdown"), (0.01, "")])
def test_a_loss_of_0_at_once_is_one_of_nan_and_a_learned_one_is_not(before, expected):
    """Trainers log a loss that is NaN as 0."""
    losses = [3.0 * 0.9**n + before for n in range(60)] + [0.0] * 60

    assert diagnose_run(steps(loss=losses), {"algorithm": "sft"}).causes == [expected]
