"""Tests of the cause answers_cut_off.

Its look-alikes are degenerate text, which loops, and a length that explodes below the limit.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.diagnoses import diagnose, diagnose_run, make_context
from support.grpo_runs import COUNT, ONSET, TRL, doubling, grpo_run, records, since

from sentinel.config.settings import build_causes

LIMIT = 512.0
SHORT = TRL | {"max_completion_length": LIMIT, "beta": 0.001}


def growing_to_limit(limit, seed, repetition=0.1):
    """Answers that grow fivefold; up to 95 % of those beyond the limit are cut."""
    run, rng = grpo_run(seed), np.random.default_rng([seed, 45])
    untruncated = run["completion_length"] * doubling(40, 5)
    cut = np.clip(untruncated / limit - 0.6, 0, 0.95)
    run["completion_length"] = np.minimum(untruncated, 0.95 * limit)
    run["truncated_fraction"] = np.clip(cut + run["truncated_fraction"], 0, 1)
    run["sample_repetition"] = np.clip(rng.normal(0.1, 0.02, COUNT), 0, 1)
    run["sample_repetition"] += (repetition - 0.1) * np.clip(since(ONSET + 40) / 20, 0, 1)
    run["reward"] *= 1 - 0.8 * cut
    return run


@pytest.mark.parametrize("seed", range(3))
def test_answers_that_grow_to_the_limit_are_diagnosed(seed):
    replay = diagnose_run(records(growing_to_limit(LIMIT, seed)), SHORT)

    assert replay.causes == ["answers_cut_off"]
    (case,) = replay.cases.values()
    assert "of at most 512 tokens" in " ".join(item.text for item in case.diagnosis.evidence)
    assert "`max_completion_length`" in case.diagnosis.remedy


def test_repetitive_answers_at_the_limit_have_another_cause():
    found = diagnose_run(records(growing_to_limit(LIMIT, 1, repetition=0.9)), SHORT).causes

    assert "answers_cut_off" not in found
    assert found != [""]


def test_a_falling_reward_is_not_explained_by_constant_truncation():
    run = grpo_run(3)
    run["truncated_fraction"] = run["truncated_fraction"] + 0.4
    run["reward"] -= 0.6 * np.clip(since() / 8, 0, 1)

    assert diagnose_run(records(run), SHORT).causes == [""]


def test_answers_below_the_limit_have_no_cause():
    run = grpo_run(2)
    run["completion_length"] *= doubling(10, 8)

    assert diagnose_run(records(run), SHORT | {"max_completion_length": 8192.0}).causes == [""]


def test_cut_off_completions_that_all_lost_their_reward_are_a_collapse():
    context = make_context(
        None, {}, length_explosion=20, truncation=22, reward_collapse=24, reward_zero_variance=26
    )
    assert diagnose(context, build_causes()).cause == "policy_collapse"
