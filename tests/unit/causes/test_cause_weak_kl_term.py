"""Tests of the cause weak_kl_term.

Its look-alike is the policy collapse, which can follow it.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.diagnoses import diagnose_run, make_context
from support.grpo_runs import ONSET, TRL, doubling, grpo_run, records, since

from sentinel.causes._evidence import stronger_kl_advice

LOOSE = TRL | {"beta": 0.001}


def rising_kl(seed, falls_after=None):
    run = grpo_run(seed)
    run["kl_ref"] *= doubling(15, 60)
    if falls_after is not None:
        run["reward"] -= 0.6 * np.clip(since(ONSET + falls_after) / 8, 0, 1)
    return run


@pytest.mark.parametrize("seed", range(3))
def test_a_kl_rise_at_a_small_coefficient_is_diagnosed(seed):
    replay = diagnose_run(records(rising_kl(seed)), LOOSE)

    assert replay.causes == ["weak_kl_term"]
    (case,) = replay.cases.values()
    assert case.incident.key.detector == "kl_blowup"
    assert "0.001" in case.diagnosis.evidence[-1].text
    assert "(`beta`) at 0.02 instead of 0.001" in case.diagnosis.remedy


def test_without_a_kl_term_the_remedy_gives_a_first_value():
    (case,) = diagnose_run(records(rising_kl(0)), TRL | {"beta": 0.0}).cases.values()

    assert "(`beta`) at 0.04 instead of 0" in case.diagnosis.remedy


@pytest.mark.parametrize("seed", range(3))
def test_once_the_reward_falls_it_is_a_policy_collapse(seed):
    replay = diagnose_run(records(rising_kl(seed, falls_after=60)), LOOSE)

    assert replay.causes == ["policy_collapse"]
    assert replay.notifications[0].diagnosis.cause == "weak_kl_term"
    assert replay.notifications[0].step < ONSET + 60


def test_a_rising_kl_with_usual_settings_has_no_cause():
    assert diagnose_run(records(rising_kl(1)), TRL).causes == [""]


VERL = {"framework": "verl", "beta": 0.0, "kl_loss_coef": 0.001, "use_kl_loss": "false"}


def test_the_remedy_names_the_switch_of_a_disabled_term():
    assert "`actor_rollout_ref.actor.use_kl_loss`) enabled and " in stronger_kl_advice(
        make_context(VERL)
    )


def test_the_remedy_names_the_coefficient_of_a_term_in_the_reward():
    inside = make_context(VERL | {"beta": 0.001, "use_kl_in_reward": "true"})

    advice = stronger_kl_advice(inside)
    assert "(`algorithm.kl_ctrl.kl_coef`) at 0.02 instead of 0.001" in advice
    assert "(`algorithm.kl_ctrl.type=adaptive`)" in advice


@pytest.mark.parametrize(
    ("beta", "expected"),
    [(None, "2 to 5 times as high"), (0.05, "at 0.1 to 0.25 instead of 0.05"), (0.0, "at 0.04")],
)
def test_the_figures_of_the_remedy_follow_the_coefficient_of_the_run(beta, expected):
    settings = TRL | ({} if beta is None else {"beta": beta})
    settings = {name: x for name, x in settings.items() if name != "beta" or beta is not None}

    assert expected in stronger_kl_advice(make_context(settings))
