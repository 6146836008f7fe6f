"""Tests of the cause exploration_lost.

Its look-alikes are a policy collapse, where the reward falls as well, and prompts without contrast,
where the entropy is well.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.diagnoses import diagnose_run
from support.grpo_runs import ONSET, TRL, grpo_run, records, since


def certain(seed, alike_after=30):
    """Entropy falls e-fold every 25 points; the reward stays where it is, and so do the answers."""
    run, left = grpo_run(seed), np.maximum(np.exp(-since() / 25), 0.02)
    run["entropy"] *= left
    alike = np.clip(since(ONSET + alike_after) / 30, 0, 1)
    run["frac_zero_std"] = 1 - (1 - run["frac_zero_std"]) * (1 - 0.97 * alike)
    run["reward_std"] *= 1 - 0.97 * alike
    run["grad_norm"] *= 1 - 0.97 * alike
    run["reward"] -= 0.15 * alike
    return run


@pytest.mark.parametrize("seed", range(3))
def test_an_entropy_that_collapses_before_answers_are_alike_is_that(seed):
    replay = diagnose_run(records(certain(seed)), TRL)

    assert replay.causes == ["exploration_lost"]
    (case,) = replay.cases.values()
    assert "`epsilon_high`" in case.diagnosis.remedy
    assert "`entropy_coef`" in case.diagnosis.remedy


def test_a_low_temperature_is_evidence():
    replay = diagnose_run(records(certain(1, alike_after=400)), TRL | {"temperature": 0.4})

    assert replay.causes == ["exploration_lost"]
    (case,) = replay.cases.values()
    assert "0.4" in case.diagnosis.evidence[-1].text


@pytest.mark.parametrize("seed", range(3))
def test_with_a_reward_that_falls_off_it_is_a_policy_collapse(seed):
    run = certain(seed)
    run["reward"] -= 0.6 * np.clip(since(ONSET + 50) / 8, 0, 1)

    assert diagnose_run(records(run), TRL).causes == ["policy_collapse"]
