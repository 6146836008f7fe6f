"""Tests of the cause reward_function_broken.

Its look-alikes are a policy collapse to the lowest reward, which KL or entropy precede, and groups
without contrast, where the reward does not fall.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.diagnoses import diagnose_run
from support.grpo_runs import ONSET, TRL, doubling, grpo_run, records, since

from sentinel.model.finding import Severity

REWARD_SIGNALS = ("reward", "reward_std", "frac_zero_std", "learning_rate")


def broken(seed, constant=0.0):
    """From the onset on every answer has the same reward, and the gradient is almost zero."""
    run, is_broken = grpo_run(seed), since() > 0
    run["reward"] = np.where(is_broken, constant, run["reward"])
    run["reward_std"] = np.where(is_broken, 0.0, run["reward_std"])
    run["frac_zero_std"] = np.where(is_broken, 1.0, run["frac_zero_std"])
    run["grad_norm"] = np.where(is_broken, 1e-5, run["grad_norm"])
    return run


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("constant", [0.0, -1.0])
def test_a_reward_that_becomes_constant_at_once_is_diagnosed(seed, constant):
    replay = diagnose_run(records(broken(seed, constant)), TRL)

    assert replay.causes == ["reward_function_broken"]
    (case,) = replay.cases.values()
    assert case.incident.severity is Severity.CRITICAL
    assert "server" in case.diagnosis.remedy


@pytest.mark.parametrize("seed", range(3))
def test_the_cause_is_named_once_five_rewards_are_the_same(seed):
    named = diagnose_run(records(broken(seed)), TRL).named_causes

    assert list(named) == ["reward_function_broken"]
    assert named["reward_function_broken"] <= ONSET + 16


@pytest.mark.parametrize("seed", range(3))
def test_a_kl_rise_before_it_is_a_policy_collapse(seed):
    run = broken(seed)
    run["kl_ref"] *= doubling(10, 60, ONSET - 60)

    assert diagnose_run(records(run), TRL).causes == ["policy_collapse"]


def test_without_a_policy_signal_there_is_no_cause():
    run = {name: series for name, series in broken(2).items() if name in REWARD_SIGNALS}

    assert diagnose_run(records(run), TRL).causes == [""]


def test_a_falling_reward_with_variance_is_not_constant():
    run = grpo_run(3)
    run["reward"] -= 0.5 * (since() > 0)

    assert diagnose_run(records(run), TRL).causes == [""]
