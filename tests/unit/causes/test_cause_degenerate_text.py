"""Tests of the cause degenerate_text.

Its look-alikes are answers that are cut off without repetition, and the policy collapse, where KL
rises and the reward falls as well.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.diagnoses import diagnose_run
from support.grpo_runs import COUNT, ONSET, TRL, doubling, grpo_run, records, since

LOOSE = {"framework": "verl", "beta": 0.001, "learning_rate": 2e-5}


def looping(seed, share=0.75):
    """Texts that repeat from the onset on and end at the length limit more often."""
    run, rng = grpo_run(seed), np.random.default_rng([seed, 44])
    progress = np.clip(since() / 40, 0, 1)
    run["sample_repetition"] = rng.beta(2, 18, COUNT)
    run["sample_repetition"] += (1 - run["sample_repetition"]) * share * progress
    run["completion_length"] *= doubling(20, 5)
    run["truncated_fraction"] += (1 - run["truncated_fraction"]) * 0.6 * progress
    return run


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("metadata", [TRL, LOOSE])
def test_growing_repetition_is_diagnosed_with_any_settings(seed, metadata):
    replay = diagnose_run(records(looping(seed)), metadata)

    assert replay.causes == ["degenerate_text"]
    (case,) = replay.cases.values()
    assert "the KL coefficient" in case.diagnosis.remedy


def test_with_a_rising_kl_and_a_falling_reward_it_is_a_policy_collapse():
    run = looping(1)
    run["kl_ref"] *= doubling(12, 60, ONSET - 40)
    run["reward"] -= 0.6 * np.clip(since(ONSET + 20) / 8, 0, 1)

    assert diagnose_run(records(run), TRL).causes == ["policy_collapse"]


def test_truncated_answers_without_repetition_are_not_degenerate():
    assert diagnose_run(records(looping(2, share=0.0)), TRL).causes == ["answers_cut_off"]
