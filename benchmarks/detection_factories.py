"""Factories of complete runs: reinforcement learning and supervised training."""

from __future__ import annotations

import numpy as np
from detection_faults import FAULT_EFFECTS
from detection_run import HORIZON, REINFORCED, FullRun
from support.faulty_series import MAX_HEALTHY_NORM_FACTOR
from support.policy_runs import entropy_series, length_series
from support.synthetic_runs import (
    Series,
    kl_series,
    learning_rate_schedule,
    log_uniform,
    loss_level_changes,
    reward_series,
    student_noise,
)


def make_run(
    kind: str, seed: int, fault: str = "", severity: str = "", early: bool = False
) -> FullRun:
    """A run of `kind` rl or sft; `early` gives a short one with the fault at point 30."""
    run = FullRun(seed, fault, severity)
    fill_run(run, kind, np.random.default_rng([seed, 11 if kind == "rl" else 12]), early=early)
    return run


def fill_run(run: FullRun, kind: str, rng: np.random.Generator, *, early: bool = False) -> None:
    """Fill the series of a run; what is random comes from `rng`."""
    (_fill_rl_run if kind == "rl" else _fill_sft_run)(run, rng, early=early)


def kind_of(fault: str) -> str:
    return "rl" if fault in REINFORCED else "sft"


def _length_and_onset(
    rng: np.random.Generator, length: float, fault: str, early: bool
) -> tuple[int, int]:
    """Number of points, and the first faulty one; the run is longer than the fault's horizon."""
    if early:
        return int(rng.integers(190, 300)), 30
    onset = int(length * rng.uniform(0.35, 0.7))
    horizon = HORIZON.get(fault, 150) if fault else 0
    return max(int(length), onset + (horizon if horizon < 1000 else 0) + 1), onset


def _fill_rl_run(run: FullRun, rng: np.random.Generator, *, early: bool) -> None:
    fault = run.fault
    length, onset = _length_and_onset(rng, log_uniform(rng, 120, 2000), fault, early)
    rate = learning_rate_schedule(rng, length)
    progress = np.cumsum(rate) / rate.sum()
    run.onset = onset if fault else None
    reward, gain = reward_series(rng, progress)
    lengths = length_series(rng, progress)
    longest = float(lengths.max() * rng.uniform(2, 8))
    zero_share = np.clip(rng.beta(2, 10, length) + 0.3 * progress * rng.random(), 0, 0.95)
    run.series = {
        "loss": 0.02 * rng.standard_normal(length) * rng.uniform(0.2, 2),
        "reward": reward,
        "reward_std": gain
        * log_uniform(rng, 0.1, 0.5)
        * np.exp(0.15 * rng.standard_normal(length)),
        "frac_zero_std": zero_share,
        "kl_ref": kl_series(rng, progress),
        "entropy": entropy_series(rng, progress),
        "completion_length": lengths,
        "grad_norm": gradient_norms(rng, length, 20),
        "learning_rate": rate * 1e-6,
        "sample_repetition": np.clip(rng.beta(2, 18, length), 0, 1),
    }
    # The configuration does not depend on the fault, so that it is no evidence.
    run.settings = {"beta": log_uniform(rng, 0.0005, 0.1)}
    if rng.random() < 0.5:  # many trainers log the size of a step
        run.series["clip_fraction"] = rng.beta(2, 18, length)
        run.series["kl_old"] = log_uniform(rng, 0.0005, 0.01) * np.exp(
            0.4 * student_noise(rng, length)
        )
    if fault:
        apply_effect = FAULT_EFFECTS[fault]
        apply_effect(run, np.maximum(np.arange(length) - onset, 0), gain)
    _cut_off(rng, run, longest, gain)
    add_step_times(rng, run, run.series["completion_length"] * 64)


def _cut_off(rng: np.random.Generator, run: FullRun, longest: float, gain: float) -> None:
    """Truncate completions at a limit; truncated ones lose the learned reward."""
    series, count = run.series, len(run)
    untruncated = series["completion_length"]
    share = np.clip((untruncated / longest - 0.6) / 0.8, 0, 1) ** 2
    series["truncated_fraction"] = np.clip(share + rng.beta(1, 40, count), 0, 1)
    series["completion_length"] = np.minimum(untruncated, longest)
    series["reward"] = series["reward"] - gain * share


def _fill_sft_run(run: FullRun, rng: np.random.Generator, *, early: bool) -> None:
    fault = run.fault
    run.every = every = int(rng.choice([1, 1, 1, 5, 10]))
    length, onset = _length_and_onset(
        rng, max(120.0, log_uniform(rng, 600, 4000) / every), fault, early
    )
    if fault == "loss_plateau":
        onset = int(length * rng.uniform(0.12, 0.3))
    rate = learning_rate_schedule(rng, length)
    # A stalled loss stops before its learning rate does; otherwise it has converged.
    progress = np.cumsum(rate) * every
    loss_progress = np.minimum(progress, progress[onset]) if fault == "loss_plateau" else progress
    first = rng.uniform(1.2, 11.0)
    last = first * rng.uniform(0.25, 0.8)
    truth = last + (first - last) * (1 + loss_progress / log_uniform(rng, 3, 60)) ** -rng.uniform(
        0.3, 0.9
    )
    run.onset = onset if fault else None
    run.truth = truth * (loss_level_changes(rng, length) if not fault else 1)
    spread = log_uniform(rng, 0.01, 0.14) / every**0.5
    jumps = (rng.random(length) < 0.001) * rng.uniform(0.2, 0.8, length) / every
    run.eval_every = max(1, length // int(rng.integers(12, 60)))
    held_out = np.minimum.accumulate(truth) * (1 + rng.uniform(0, 0.3))
    run.series = {
        "loss": run.truth * np.exp(student_noise(rng, length) * spread + jumps),
        "grad_norm": gradient_norms(rng, length, every),
        "learning_rate": rate * 1e-5,
        "eval_loss": held_out * np.exp(rng.standard_t(5, length) * log_uniform(rng, 0.001, 0.015)),
    }
    add_step_times(rng, run, np.full(length, 8192.0))
    if fault and fault != "loss_plateau":
        FAULT_EFFECTS[fault](run, np.maximum(np.arange(length) - onset, 0), spread)


def gradient_norms(rng: np.random.Generator, count: int, every: int) -> Series:
    time = np.arange(count)
    start = log_uniform(rng, 0.3, 30)
    level = log_uniform(rng, 0.1, 10) * (
        1 + start * np.exp(-time / log_uniform(rng, 3, 60) * every)
    )
    level = level * (1 + time / 50) ** rng.uniform(-0.4, 0.4)
    outliers = (rng.random(count) < 0.003) * np.log(rng.uniform(2, 8, count))
    noise = student_noise(rng, count) * log_uniform(rng, 0.08, 0.9) + outliers
    return np.asarray(level * np.exp(np.minimum(noise, np.log(MAX_HEALTHY_NORM_FACTOR))))


def add_step_times(rng: np.random.Generator, run: FullRun, tokens: Series) -> None:
    """Add step times: a constant, a time per token, and occasional delays."""
    fixed, count = rng.uniform(0.1, 0.5), len(run)
    noise = np.exp(student_noise(rng, count) * log_uniform(rng, 0.01, 0.08))
    delays = np.where(rng.random(count) < 0.01, rng.uniform(1.5, 6, count), 1.0)
    share = fixed + (1 - fixed) * tokens / tokens[0]
    run.series["step_time"] = log_uniform(rng, 0.3, 60) * share * noise * delays
    run.series["tokens"] = tokens
