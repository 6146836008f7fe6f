"""Tests of the cause value_function_unfit.

Its look-alike is the policy collapse, after which the value model does not fit.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.diagnoses import diagnose_run
from support.grpo_runs import COUNT, ONSET, doubling, grpo_run, records, since

PPO = {"framework": "trl", "algorithm": "ppo", "kl_coef": 0.05, "learning_rate": 1e-6}
VERL = {"framework": "verl", "algorithm": "gae", "beta": 0.001, "learning_rate": 1e-6}


def with_poor_fit(seed, onset):
    """A run of PPO whose value model is worse than a constant from the onset on."""
    run, rng = grpo_run(seed), np.random.default_rng([seed, 46])
    run["explained_variance"] = np.where(since(onset) > 0, -0.4, 0.6) + rng.normal(0, 0.15, COUNT)
    return run


def with_falling_reward(seed):
    """A value model that does not fit, and a reward that falls to its initial level."""
    run = with_poor_fit(seed, onset=ONSET - 60)
    run["reward"] -= 0.5 * np.clip(since() / 40, 0, 1)
    return run


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("metadata", [PPO, VERL])
def test_a_reward_that_falls_with_a_poor_fit_is_diagnosed(seed, metadata):
    replay = diagnose_run(records(with_falling_reward(seed)), metadata)

    assert replay.causes == ["value_function_unfit"]
    (case,) = replay.cases.values()
    setting = "`vf_coef`" if metadata is PPO else "`trainer.critic_warmup`"
    assert setting in case.diagnosis.remedy


@pytest.mark.parametrize("seed", range(3))
def test_a_fit_that_is_only_less_good_makes_it_possible(seed):
    run = with_falling_reward(seed)
    run["explained_variance"] += np.where(since(ONSET - 60) > 0, 0.6, 0.3)
    (case,) = diagnose_run(records(run), PPO).cases.values()

    assert case.diagnosis is None
    assert "value_function_unfit" in [each.cause for each in case.possible_causes]


def test_a_constant_reward_with_a_poor_fit_is_diagnosed():
    rng = np.random.default_rng(7)
    run = {name: np.tile(series, 3) for name, series in with_poor_fit(0, onset=0).items()}
    run["reward"] = 0.2 + rng.normal(0, 0.1, 3 * COUNT)

    assert set(diagnose_run(records(run), PPO).causes) == {"value_function_unfit"}


@pytest.mark.parametrize("seed", range(3))
def test_a_poor_fit_after_a_kl_rise_is_a_policy_collapse(seed):
    run = with_poor_fit(seed, onset=ONSET + 20)
    run["kl_ref"] *= doubling(12, 60, ONSET - 20)
    run["reward"] -= 0.6 * np.clip(since(ONSET + 30) / 8, 0, 1)

    assert diagnose_run(records(run), PPO).causes == ["policy_collapse"]


def test_a_poor_fit_alone_sends_no_notification():
    assert diagnose_run(records(with_poor_fit(1, onset=ONSET)), PPO).notifications == []
