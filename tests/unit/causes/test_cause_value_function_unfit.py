"""Tests of the cause value_function_unfit.

Its look-alike is the policy collapse, which the value model cannot follow.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.diagnoses import diagnose_run
from support.grpo_runs import COUNT, ONSET, doubling, grpo_run, records, since

PPO = {"framework": "trl", "algorithm": "ppo", "kl_coef": 0.05, "learning_rate": 1e-6}
VERL = {"framework": "verl", "algorithm": "gae", "beta": 0.001, "learning_rate": 1e-6}


def valued(seed, onset):
    """A run of PPO whose value model is worse than a constant from the onset on."""
    run, rng = grpo_run(seed), np.random.default_rng([seed, 46])
    run["explained_variance"] = np.where(since(onset) > 0, -0.4, 0.6) + rng.normal(0, 0.15, COUNT)
    return run


def misled(seed):
    """Never a value, and a reward that is lost again as far as it was learnt."""
    run = valued(seed, onset=ONSET - 60)
    run["reward"] -= 0.5 * np.clip(since() / 40, 0, 1)
    return run


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("facts", [PPO, VERL])
def test_a_reward_that_is_lost_under_a_value_model_that_misleads_is_that(seed, facts):
    replay = diagnose_run(records(misled(seed)), facts)

    assert replay.causes == ["value_function_unfit"]
    (case,) = replay.cases.values()
    lever = "`vf_coef`" if facts is PPO else "`trainer.critic_warmup`"
    assert lever in case.diagnosis.remedy


def test_a_reward_that_never_moves_is_that_too():
    rng = np.random.default_rng(7)
    run = {name: np.tile(series, 3) for name, series in valued(0, onset=0).items()}
    run["reward"] = 0.2 + rng.normal(0, 0.1, 3 * COUNT)

    assert set(diagnose_run(records(run), PPO).causes) == {"value_function_unfit"}


@pytest.mark.parametrize("seed", range(3))
def test_a_value_model_that_cannot_follow_a_policy_that_runs_off_is_a_policy_collapse(seed):
    run = valued(seed, onset=ONSET + 20)
    run["kl_ref"] *= doubling(12, 60, ONSET - 20)
    run["reward"] -= 0.6 * np.clip(since(ONSET + 30) / 8, 0, 1)

    assert diagnose_run(records(run), PPO).causes == ["policy_collapse"]


def test_a_bad_fit_alone_has_no_cause():
    assert diagnose_run(records(valued(1, onset=ONSET)), PPO).notifications == []
