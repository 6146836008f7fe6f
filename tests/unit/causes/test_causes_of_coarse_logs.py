"""Causes on short logs that have one line for several steps, as real runs do.

Each log is shaped like one on which a wrong cause was named: the cause must be right or none.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.diagnoses import RUN, DiagnosedRun, diagnose_run
from support.synthetic_runs import Series

from sentinel.model.finding import Severity
from sentinel.model.record import WHOLE_RUN, Record

SETTINGS = {"framework": "trl", "algorithm": "grpo", "beta": 0.04, "learning_rate": 1e-6}
STRIDE = 5
"""Steps per line."""

CAP = 512.0
SEEDS = range(3)


def all_causes(run: dict[str, Series], stride: int = STRIDE) -> set[str]:
    """Each cause that was ever named, "" for a case without one at its end."""
    diagnosed = diagnose(run, stride)
    return {*diagnosed.named_causes, *diagnosed.causes}


def diagnose(run: dict[str, Series], stride: int = STRIDE) -> DiagnosedRun:
    return diagnose_run(lines(run, stride), SETTINGS)


def lines(run: dict[str, Series], stride: int) -> Iterator[Record]:
    """One record for each `stride` steps."""
    columns = {name: values.tolist() for name, values in run.items()}
    for at in range(len(columns["reward"])):
        values = {name: column[at] for name, column in columns.items()}
        step = stride * (at + 1)
        yield Record(RUN, WHOLE_RUN, step, float(step), values=values)


def policy_run(seed: int, count: int, level: Series | float) -> dict[str, Series]:
    """A policy whose reward is the share of right answers in 10 groups of 4."""
    rng = np.random.default_rng([seed, 1_000_011])
    chance = np.broadcast_to(level, count)
    # Prompts differ in difficulty: most are always or never solved.
    groups = np.stack([rng.beta(0.4 * p + 1e-6, 0.4 * (1 - p) + 1e-6, 10) for p in chance])
    right = rng.binomial(4, groups)
    return {
        "reward": right.mean(axis=1) / 4,
        "reward_std": np.sqrt(right * (4 - right) / 12).mean(axis=1),
        "frac_zero_std": np.isin(right, (0, 4)).mean(axis=1),
        "completion_length": 240 * np.exp(rng.normal(0, 0.1, count)),
        "truncated_fraction": rng.binomial(40, 0.02, count) / 40,
        "entropy": 0.15 * np.exp(rng.normal(0, 0.15, count)),
        "grad_norm": 0.3 * np.exp(rng.normal(0, 0.4, count)),
    }


def ramp(count: int, start: int, lines_to_one: int) -> Series:
    return np.clip((np.arange(count) - start + 1) / lines_to_one, 0, 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_falling_reward_that_varies_is_no_constant(seed):
    """Single records without spread, since there are only two groups."""
    rng = np.random.default_rng([seed, 1_000_012])
    run = policy_run(seed, 170, np.where(np.arange(170) < 118, 0.8, 0.35))
    run["reward"] = rng.binomial(8, run["reward"]) / 8
    run["reward_std"] = np.where(rng.random(170) < 0.4, 0.0, run["reward_std"])
    del run["frac_zero_std"]

    assert "reward_function_broken" not in all_causes(run, stride=1)


@pytest.mark.parametrize("seed", SEEDS)
def test_completions_that_grow_until_they_are_cut_off_are_no_broken_reward(seed):
    """Cut completions earn nothing, so the reward is 0 while its function is right."""
    count = 40
    grown, cut = ramp(count, 10, 12), ramp(count, 18, 4)
    run = policy_run(seed, count, 0.75 * (1 - ramp(count, 19, 3)) + 1e-4)
    run["completion_length"] = np.minimum(run["completion_length"] * (1 + 1.6 * grown), CAP)
    run["truncated_fraction"] = np.maximum(run["truncated_fraction"], 0.97 * cut)
    run["kl_mismatch"] = 0.003 + 0.08 * ramp(count, 27, 3)

    causes = all_causes(run)
    assert "reward_function_broken" not in causes
    assert "rollout_engine_differs" not in causes
    assert causes & {"answers_cut_off", "policy_collapse"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_collapse_of_solved_groups_is_no_missing_contrast(seed):
    """Groups were idle before the collapse because they were solved, and since because they fail.

    The fall takes two lines; from the third on all completions are cut off.
    """
    count = 40
    run = policy_run(seed, count, 0.95 * (1 - ramp(count, 14, 3)) + 1e-4)
    run["truncated_fraction"] = np.maximum(run["truncated_fraction"], ramp(count, 16, 2))
    run["completion_length"] += (CAP - run["completion_length"]) * ramp(count, 16, 2)

    causes = all_causes(run)
    assert "no_contrast" not in causes
    assert "reward_function_broken" not in causes


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("delay", [0, 1, 3])
def test_a_mismatch_that_comes_with_or_after_the_collapse_is_an_effect(seed, delay):
    count = 40
    run = policy_run(seed, count, 0.85 * (1 - ramp(count, 26, 4)) + 1e-4)
    run["entropy"] *= 1 + 30 * ramp(count, 26, 6)
    run["kl_mismatch"] = 0.004 + 0.1 * ramp(count, 26 + delay, 2)

    assert "rollout_engine_differs" not in all_causes(run)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_mismatch_well_before_the_collapse_is_its_cause(seed):
    count = 80
    run = policy_run(seed, count, 0.85 * (1 - ramp(count, 50, 4)) + 1e-4)
    noise = np.random.default_rng([seed, 1_000_013]).lognormal(0, 0.2, count)
    run["kl_mismatch"] = np.where(np.arange(count) < 35, 0.004, 0.15) * noise

    assert diagnose(run).causes == ["rollout_engine_differs"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("stride", [1, STRIDE])
@pytest.mark.parametrize("constant", [0.0, 0.1])
def test_a_constant_reward_of_an_unchanged_policy_is_a_broken_function(seed, stride, constant):
    count = 60
    run, is_broken = policy_run(seed, count, 0.75), np.arange(count) >= 30
    run["reward"] = np.where(is_broken, constant, run["reward"])
    run["reward_std"] = np.where(is_broken, 0.0, run["reward_std"])
    run["frac_zero_std"] = np.where(is_broken, 1.0, run["frac_zero_std"])

    diagnosed = diagnose(run, stride)
    assert diagnosed.causes == ["reward_function_broken"]
    (case,) = diagnosed.cases.values()
    assert case.incident.severity is Severity.CRITICAL


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("changed", ["entropy", "completion_length"])
def test_a_constant_reward_after_the_policy_changed_is_no_broken_function(seed, changed):
    """The change is too small or too short for an incident of its own."""
    count = 60
    run = policy_run(seed, count, 0.75 * (1 - ramp(count, 30, 2)) + 1e-5)
    run[changed] *= 1 + 0.7 * ramp(count, 27, 3)

    assert "reward_function_broken" not in all_causes(run)


def test_nan_gradients_since_the_first_line_with_a_frozen_rate_are_a_numerical_breakdown():
    count = 60
    nothing = np.full(count, np.nan)
    run = {"reward": nothing, "loss": np.zeros(count), "grad_norm": nothing}
    run["learning_rate"] = np.full(count, 5e-5)
    settings = {"framework": "transformers", "learning_rate": 5e-5, "max_steps": 1000.0}
    rows = (
        Record(RUN, WHOLE_RUN, each.step, each.time, values=_without_reward(each.values))
        for each in lines(run, STRIDE)
    )

    diagnosed = diagnose_run(rows, settings)
    assert diagnosed.causes == ["numerical_breakdown"]
    (case,) = diagnosed.cases.values()
    assert any("skipped" in each.text for each in case.diagnosis.evidence)


def _without_reward(values):
    return {name: value for name, value in values.items() if name != "reward"}
