"""Tests of the cause too_many_updates.

Its look-alikes are a KL term that is too weak, where nothing is clipped before, and a rollout
engine that differs, where even the first update of a batch is clipped.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.diagnoses import diagnose_run
from support.grpo_runs import ONSET, TRL, doubling, grpo_run, records, since

MANY = TRL | {"num_iterations": 8.0}


def over_updated(seed, lag=10):
    """From the onset on, the clip fraction and the KL to both policies rise."""
    run = grpo_run(seed)
    run["clip_fraction"] += 0.6 * np.clip(since() / 20, 0, 1)
    run["kl_old"] *= doubling(8, 400)
    run["kl_ref"] *= doubling(15, 60, ONSET + lag)
    return run


@pytest.mark.parametrize("seed", range(3))
def test_clipping_before_a_kl_rise_is_diagnosed(seed):
    replay = diagnose_run(records(over_updated(seed)), MANY)

    assert replay.causes == ["too_many_updates"]
    (case,) = replay.cases.values()
    assert "8 epochs" in case.diagnosis.evidence[-1].text
    assert "`num_iterations`" in case.diagnosis.remedy


def test_it_is_diagnosed_without_settings_and_with_a_weak_kl_term():
    assert diagnose_run(records(over_updated(3))).causes == ["too_many_updates"]
    loose = {"beta": 0.001, "learning_rate": 2e-5}
    assert diagnose_run(records(over_updated(3)), TRL | loose).causes == ["too_many_updates"]


def test_a_kl_rise_before_clipping_is_a_weak_kl_term():
    run = over_updated(1, lag=-60)

    assert diagnose_run(records(run), TRL | {"beta": 0.001}).causes == ["weak_kl_term"]


def test_a_batch_that_is_used_once_has_no_cause():
    once = TRL | {
        "num_iterations": 1.0,
        "steps_per_generation": 4.0,
        "gradient_accumulation_steps": 4.0,
    }

    assert diagnose_run(records(over_updated(2)), once).causes == [""]


def test_updates_of_verl_follow_from_its_batch_sizes():
    verl = {"framework": "verl", "ppo_epochs": 1.0, "train_batch_size": 1024.0}
    many, one = verl | {"ppo_mini_batch_size": 128.0}, verl | {"ppo_mini_batch_size": 1024.0}

    assert diagnose_run(records(over_updated(2)), many).causes == ["too_many_updates"]
    assert diagnose_run(records(over_updated(2)), one).causes == [""]
