"""Tests of the cause rollout_engine_differs.

Its look-alike is the policy collapse, in which the mismatch comes last.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.diagnoses import diagnose, diagnose_run, make_context
from support.grpo_runs import COUNT, ONSET, TRL, doubling, grpo_run, records, since

from sentinel.causes.rollout_engine_differs import RolloutEngineDiffers
from sentinel.model.finding import Severity

VLLM = TRL | {"use_vllm": "true", "vllm_mode": "server", "beta": 0.001}


def with_engine(seed, onset=ONSET, gap=0.4):
    """A healthy run whose engine differs by `gap` nats per token after the onset."""
    run, rng = grpo_run(seed), np.random.default_rng([seed, 43])
    run["kl_mismatch"] = np.where(since(onset) > 0, gap, 0.004) * np.exp(rng.normal(0, 0.3, COUNT))
    return run


def with_consequences(run, onset):
    """The run with a rising gradient norm and KL and a falling reward from the onset on."""
    run["grad_norm"] *= doubling(5, 40, onset)
    run["kl_ref"] *= doubling(12, 40, onset + 10)
    run["reward"] -= 0.6 * np.clip(since(onset + 60) / 8, 0, 1)
    return run


@pytest.mark.parametrize("seed", range(3))
def test_a_mismatch_before_gradient_kl_and_reward_is_diagnosed(seed):
    replay = diagnose_run(records(with_consequences(with_engine(seed), ONSET + 20)), VLLM)

    assert replay.causes == ["rollout_engine_differs"]
    (case,) = replay.cases.values()
    assert "server" in case.diagnosis.evidence[-1].text
    assert "`vllm_importance_sampling_correction`" in case.diagnosis.remedy


def test_a_large_mismatch_is_a_cause_and_a_moderate_one_is_not():
    assert diagnose_run(records(with_engine(1, gap=3.0)), VLLM).causes == ["rollout_engine_differs"]
    assert diagnose_run(records(with_engine(1, gap=0.2)), VLLM).notifications == []


@pytest.mark.parametrize("seed", range(3))
def test_a_mismatch_after_the_kl_rise_is_a_policy_collapse(seed):
    run = with_consequences(with_engine(seed, onset=ONSET + 40), ONSET - 20)

    assert diagnose_run(records(run), VLLM).causes == ["policy_collapse"]


def test_a_moderate_mismatch_since_the_start_does_not_explain_a_late_collapse():
    run = with_consequences(with_engine(2, onset=0, gap=0.15), ONSET)

    assert diagnose_run(records(run), VLLM).causes == ["policy_collapse"]


def test_the_confidence_of_a_moderate_mismatch_depends_on_its_effects():
    large = make_context({}, rollout_mismatch=100, grad_explosion=150)
    info = replace(large.symptoms["rollout_mismatch"], severity=Severity.INFO)
    moderate = replace(large, symptoms={**large.symptoms, "rollout_mismatch": info})
    high, low = (
        diagnose(each, {"it": RolloutEngineDiffers()}).confidence for each in (large, moderate)
    )

    assert high > 0.8
    assert 0.6 < low < 0.7
