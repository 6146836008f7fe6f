"""Tests of the cause exploration_lost.

Its look-alikes are a policy collapse, where the reward falls as well, and prompts without contrast,
where the entropy stays high.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.diagnoses import diagnose, diagnose_run, make_context
from support.grpo_runs import ONSET, TRL, grpo_run, records, since

from sentinel.causes.exploration_lost import ExplorationLost
from sentinel.config.settings import build_causes


def losing_entropy(seed, equal_after=30):
    """Entropy falls e-fold every 25 points; `equal_after` points later answers become equal."""
    run, remaining = grpo_run(seed), np.maximum(np.exp(-since() / 25), 0.02)
    run["entropy"] *= remaining
    equal = np.clip(since(ONSET + equal_after) / 30, 0, 1)
    run["frac_zero_std"] = 1 - (1 - run["frac_zero_std"]) * (1 - 0.97 * equal)
    run["reward_std"] *= 1 - 0.97 * equal
    run["grad_norm"] *= 1 - 0.97 * equal
    run["reward"] -= 0.15 * equal
    return run


@pytest.mark.parametrize("seed", range(3))
def test_an_entropy_collapse_before_answers_become_equal_is_diagnosed(seed):
    replay = diagnose_run(records(losing_entropy(seed)), TRL)

    assert replay.causes == ["exploration_lost"]
    (case,) = replay.cases.values()
    assert "`epsilon_high`" in case.diagnosis.remedy
    assert "`entropy_coef`" in case.diagnosis.remedy


def test_a_low_temperature_is_evidence():
    replay = diagnose_run(records(losing_entropy(1, equal_after=400)), TRL | {"temperature": 0.4})

    assert replay.causes == ["exploration_lost"]
    (case,) = replay.cases.values()
    assert "0.4" in case.diagnosis.evidence[-1].text


@pytest.mark.parametrize("seed", range(3))
def test_with_a_falling_reward_it_is_a_policy_collapse(seed):
    run = losing_entropy(seed)
    run["reward"] -= 0.6 * np.clip(since(ONSET + 50) / 8, 0, 1)

    assert diagnose_run(records(run), TRL).causes == ["policy_collapse"]


def test_an_entropy_that_is_back_contradicts_it():
    context = make_context(None, {"reward": 0.5}, entropy_collapse=20)
    low = [(step, 1.0 if step < 20 else 0.05) for step in range(40)]
    back = [(step, 0.05 if 20 <= step < 30 else 1.0) for step in range(40)]
    cause = {"it": ExplorationLost()}

    assert diagnose(replace(context, history={"entropy": low}), cause)
    assert not diagnose(replace(context, history={"entropy": back}), cause)
    over = replace(context.symptoms["entropy_collapse"], is_over=True)
    assert not diagnose(replace(context, symptoms={"entropy_collapse": over}), cause)


def test_completions_that_grow_with_it_are_degenerate_text():
    context = make_context(
        None, {"reward": 0.5}, entropy_collapse=20, length_explosion=22, truncation=24
    )

    assert diagnose(context, build_causes()).cause == "degenerate_text"
