"""Tests of the cause reward_hacked.

Its look-alikes are a weak KL term, where length and reward do not rise, and the policy
collapse, where the reward falls.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.diagnoses import diagnose, diagnose_run, make_context
from support.grpo_runs import ONSET, TRL, doubling, grpo_run, records, since

from sentinel.causes.reward_hacked import RewardHacked

LOOSE = TRL | {"beta": 0.001}


def hacked(seed, gain=0.5):
    """A reward that rises with the length and the KL to the reference."""
    run = grpo_run(seed)
    run["kl_ref"] *= doubling(20, 40)
    run["completion_length"] *= doubling(30, 6)
    run["reward"] += gain * np.clip(since() / 80, 0, 1)
    return run


@pytest.mark.parametrize("seed", range(3))
def test_reward_kl_and_length_that_rise_together_are_diagnosed(seed):
    replay = diagnose_run(records(hacked(seed)), LOOSE)

    assert replay.causes == ["reward_hacked"]
    (case,) = replay.cases.values()
    assert case.diagnosis.severity is None
    assert "not trained on" in case.diagnosis.remedy


@pytest.mark.parametrize("seed", range(3))
def test_a_falling_reward_is_a_policy_collapse(seed):
    run = hacked(seed, gain=0.0)
    run["reward"] -= 0.6 * np.clip(since(ONSET + 60) / 8, 0, 1)

    assert diagnose_run(records(run), LOOSE).causes == ["policy_collapse"]


def test_a_kl_that_rises_alone_is_a_weak_kl_term():
    run = hacked(1)
    run["completion_length"] = grpo_run(1)["completion_length"]

    assert diagnose_run(records(run), LOOSE).causes == ["weak_kl_term"]


def test_a_reward_that_rises_while_all_answers_are_cut_off_is_hacked():
    run = grpo_run(2)
    run["completion_length"] = np.minimum(run["completion_length"] * doubling(8, 8), 512.0)
    cut = np.clip(since() / 30, 0, 1)
    run["truncated_fraction"] = np.maximum(run["truncated_fraction"], cut)
    run["reward"] = run["reward"] + 2.0 * cut
    replay = diagnose_run(records(run), TRL | {"max_completion_length": 512.0})

    assert replay.causes == ["reward_hacked"]
    (case,) = replay.cases.values()
    assert "they are cut off, and have no end" in case.diagnosis.remedy


def test_a_reward_that_does_not_rise_contradicts_it():
    context = make_context(None, {}, reward_hacking=20, kl_blowup=20, length_explosion=20)
    rising = [(step, 0.5 if step < 20 else 0.8) for step in range(40)]
    flat = [(step, 0.5) for step in range(40)]

    assert diagnose(replace(context, history={"reward": rising}), {"it": RewardHacked()})
    assert not diagnose(replace(context, history={"reward": flat}), {"it": RewardHacked()})


@pytest.mark.parametrize("seed", range(3))
def test_correct_answers_that_fall_while_the_reward_rises_are_diagnosed(seed):
    run = grpo_run(seed)
    change, rng = np.clip(since() / 20, 0, 1), np.random.default_rng(seed)
    correct = 0.5 - 0.4 * change + 0.05 * rng.normal(size=change.size)
    run["rewards/accuracy/mean"], run["rewards/format/mean"] = correct, 0.2 + 0.8 * change
    run["reward"] = correct + run["rewards/format/mean"]
    replay = diagnose_run(records(run), LOOSE)

    assert replay.causes == ["reward_hacked"]


def test_a_reward_that_is_higher_by_chance_contradicts_it():
    context = make_context({}, reward_hacking=120, kl_blowup=120)
    noise = [0.5 + 0.1 * (-1) ** n for n in range(40)]
    cause = {"it": RewardHacked()}
    for gain, is_hacked in ((0.01, False), (0.3, True)):
        rewards = [*noise, *(reward + gain for reward in noise)]
        history = {"reward": tuple((80 + n, reward) for n, reward in enumerate(rewards))}
        assert (diagnose(replace(context, history=history), cause) is not None) is is_hacked


def test_a_level_that_one_of_many_means_has_by_chance_contradicts_it():
    context = make_context({}, truncation=2, reward_hacking=70, kl_blowup=60)
    for gain, is_hacked in ((0.07, False), (0.3, True)):
        rewards = [0.3 + 0.1 * (-1) ** n + gain * (n >= 70) for n in range(80)]
        known = replace(context, history={"reward": tuple(enumerate(rewards))})
        assert (diagnose(known, {"it": RewardHacked()}) is not None) is is_hacked


def test_a_reward_back_at_its_start_contradicts_it_though_the_time_before_is_not_known():
    context = make_context({}, reward_hacking=20, kl_blowup=10)
    risen = context.symptoms["reward_hacking"]
    risen = replace(risen, evidence={"reward_at_start": 0.3, "reward_median_of_8": 0.7})
    context = replace(context, symptoms={**context.symptoms, "reward_hacking": risen})
    for level, is_hacked in ((0.3, False), (0.7, True)):
        rewards = tuple((100 + n, level + 0.1 * (-1) ** n) for n in range(40))
        known = replace(context, history={"reward": rewards})
        assert (diagnose(known, {"it": RewardHacked()}) is not None) is is_hacked
