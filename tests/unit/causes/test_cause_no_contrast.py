"""Tests of the cause no_contrast.

Its look-alikes are lost exploration, where the entropy is low, and a broken reward function,
where the reward falls.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.diagnoses import diagnose_run
from support.grpo_runs import COUNT, TRL, grpo_run, records, since

from sentinel.model.record import Event
from sentinel.testing import event


def too_hard(seed):
    """Prompts whose answers are rarely right, and ever more rarely."""
    run, rng = grpo_run(seed), np.random.default_rng([seed, 42])
    right = rng.random((COUNT, 64)) < 0.004 * np.exp(-np.arange(COUNT) / 80)[:, None]
    run["reward"] = right.mean(axis=1)
    run["frac_zero_std"] = 1 - right.reshape(COUNT, 8, 8).any(axis=2).mean(axis=1)
    run["reward_std"] = right.reshape(COUNT, 8, 8).std(axis=2).mean(axis=1)
    run["entropy"] = run["entropy"][:1] * np.exp(rng.normal(0, 0.05, COUNT))
    return run


@pytest.mark.parametrize("seed", range(3))
def test_prompts_that_are_almost_never_solved_are_diagnosed(seed):
    replay = diagnose_run(records(too_hard(seed)), TRL)

    assert set(replay.causes) == {"no_contrast"}
    assert len(replay.cases) == 1
    (case,) = replay.cases.values()
    assert "manually" in case.diagnosis.remedy
    assert "`num_generations`" in case.diagnosis.remedy


def test_few_answers_are_evidence():
    (case,) = diagnose_run(records(too_hard(1)), TRL | {"num_generations": 2.0}).cases.values()

    assert "only 2 completions" in case.diagnosis.evidence[-1].text


def test_groups_that_lose_their_variance_later_are_diagnosed():
    run = grpo_run(4)
    run["frac_zero_std"] = np.where(since() > 0, 1.0, run["frac_zero_std"])
    run["reward"] = np.where(since() > 0, np.round(run["reward"], 1), run["reward"])

    assert diagnose_run(records(run), TRL).causes == ["no_contrast"]


def test_solved_prompts_send_no_notification():
    run = grpo_run(5)
    run["reward"] = np.clip(run["reward"] * 1.9, None, 1.0)
    run["frac_zero_std"] = np.where(run["reward"] == 1.0, 1.0, run["frac_zero_std"])

    assert diagnose_run(records(run), TRL).notifications == []


@pytest.mark.parametrize("seed", range(3))
def test_equal_answers_after_an_entropy_collapse_are_lost_exploration(seed):
    run, remaining = grpo_run(seed), np.maximum(np.exp(-since() / 25), 0.01)
    run["entropy"] *= remaining
    run["frac_zero_std"] = 1 - (1 - run["frac_zero_std"]) * remaining
    run["reward"] = np.where(since() > 0, run["reward"].mean(), run["reward"])

    assert diagnose_run(records(run), TRL).causes == ["exploration_lost"]


def test_a_run_without_completions_has_no_groups_of_them():
    rewards = [event(Event.STEP, step, reward=0.0, epsilon=0.5) for step in range(1, 200)]

    (case,) = diagnose_run(rewards).cases.values()

    assert "no_contrast" not in [possible.cause for possible in case.possible_causes]
