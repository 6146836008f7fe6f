"""Families of runs that public logs taught, healthy and with a fault, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import detection_losses as losses
import detection_policies as policies
import numpy as np
from detection_factories import make_run
from detection_run import FullRun

MEANS = "-means"
"""Ends the kind of a run that is logged in 40 to 60 lines, each the mean of several steps."""


@dataclass(frozen=True)
class Family:
    """How a run is made; for a fault, the detectors that find it and the causes that are right.

    A fault without causes has none that the log shows: any named one is wrong.
    """

    fill: Callable[[np.random.Generator, FullRun], None]
    detectors: frozenset[str] = frozenset()
    causes: frozenset[str] = frozenset()


def _family(
    fill: Callable[[np.random.Generator, FullRun], None], detectors: str, causes: str = ""
) -> Family:
    return Family(fill, frozenset(detectors.split()), frozenset(causes.split()))


HEALTHY_POLICIES = {
    fill.__name__: Family(fill)
    for fill in (
        policies.coins, policies.sparse_reward, policies.learning_outcomes, policies.take_off,
        policies.two_mode_norms, policies.solved_groups, policies.near_cap,
        policies.far_from_reference, policies.control_task, policies.spent_entropy,
        policies.signed_total,
    )
}  # fmt: skip
HEALTHY_LOSSES = {
    fill.__name__: Family(fill)
    for fill in (
        losses.signed_loss, losses.adversarial_losses, losses.small_reward_head, losses.converged,
        losses.decaying_rate, losses.lines_of_means, losses.memorising, losses.missing_by_design,
        losses.rounded_rate,
    )
}  # fmt: skip
_FLAT = "loss_never_moved loss_plateau"
FAULTY = {
    "constant_reward": _family(
        policies.constant_reward, "reward_zero_variance reward_collapse", "reward_function_broken"
    ),
    "coin_collapse": _family(
        policies.coin_collapse, "reward_collapse reward_zero_variance", "reward_function_broken"
    ),
    "early_collapse": _family(
        policies.early_collapse, "reward_collapse length_collapse", "policy_collapse"
    ),
    "stalled_reward": _family(policies.stalled_reward, "reward_stalled"),
    "capped_growth": _family(
        policies.capped_growth, "truncation length_explosion", "answers_cut_off policy_collapse"
    ),
    "lone_norm": _family(policies.lone_norm, "grad_explosion", "bad_batch"),
    "lone_norm_and_kl": _family(
        policies.lone_norm_and_kl, "grad_explosion kl_blowup", "bad_batch"
    ),
    "mismatch_first": _family(
        policies.mismatch_first, "rollout_mismatch reward_collapse kl_blowup",
        "rollout_engine_differs",
    ),
    "mismatch_after": _family(
        policies.mismatch_after, "reward_collapse kl_blowup entropy_collapse reward_zero_variance",
        "policy_collapse weak_kl_term",
    ),
    "flat_in_few_lines": _family(losses.flat_in_few_lines, _FLAT, "data_not_learnable"),
    "flat_signed": _family(losses.flat_signed, _FLAT, "data_not_learnable"),
    "pair_chance": _family(losses.pair_chance, _FLAT, "data_not_learnable"),
    "far_too_fast": _family(
        losses.far_too_fast, f"{_FLAT} loss_divergence loss_spike grad_explosion oscillation "
        "learning_rate_anomaly learning_rate_high", "learning_rate_too_high",
    ),
    "short_explosion": _family(
        losses.short_explosion, "loss_divergence loss_spike",
        "learning_rate_too_high numerical_breakdown",
    ),
    "nan_from_the_start": _family(
        losses.nan_from_the_start, "nan_or_inf", "numerical_breakdown labels_masked"
    ),
    "nan_in_unknown_key": _family(losses.nan_in_unknown_key, "nan_or_inf", "numerical_breakdown"),
}  # fmt: skip
FAMILIES = HEALTHY_POLICIES | HEALTHY_LOSSES | FAULTY


def make_family_run(name: str, seed: int) -> FullRun:
    """A run of the family `name`; its fault, if it has one, is named like the family."""
    run = FullRun(seed, name if name in FAULTY else "", "severe" if name in FAULTY else "")
    FAMILIES[name].fill(np.random.default_rng([seed, 17]), run)
    return run


def make_run_of_means(kind: str, seed: int, fault: str = "", severity: str = "") -> FullRun:
    """A run of `kind` that is logged in 40 to 60 lines, each the mean of several points."""
    run = make_run(kind.removesuffix(MEANS), seed, fault, severity)
    lines = int(np.random.default_rng([seed, 18]).integers(40, 61))
    size = max(1, len(run) // lines)
    length = len(run) // size * size
    for name, values in run.series.items():
        run.series[name] = values[:length].reshape(-1, size).mean(axis=1)
    if len(run.truth):
        run.truth = run.truth[:length].reshape(-1, size).mean(axis=1)
    run.every *= size
    run.onset = None if run.onset is None else run.onset // size
    run.cliff = None if run.cliff is None else run.cliff // size
    run.eval_every, run.save_every = max(0, run.eval_every // size), max(1, 100 // size)
    if "eval_loss" in run.series:
        run.eval_every = max(1, run.eval_every)
    return run
