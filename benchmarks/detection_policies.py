"""Runs of policies that public logs taught: outcome rewards, take-offs, groups without contrast.

Each function fills the series of a run; those with a fault set its onset.
"""

from __future__ import annotations

import numpy as np
from detection_factories import add_step_times, gradient_norms
from detection_run import FullRun
from support.policy_runs import entropy_series, length_series
from support.synthetic_runs import (
    Series,
    kl_series,
    learning_rate_schedule,
    log_uniform,
    reward_series,
    student_noise,
)

Rng = np.random.Generator


def add_policy(rng: Rng, run: FullRun, reward: Series, *, learns: bool = True) -> None:
    """Add what a trainer of policies logs beside the reward; without learning little moves."""
    count = len(reward)
    rate = learning_rate_schedule(rng, count)
    progress = np.cumsum(rate) / rate.sum() * (1 if learns else 0.1)
    run.series = {
        "reward": reward,
        "loss": 0.02 * rng.standard_normal(count) * rng.uniform(0.2, 2),
        "kl_ref": kl_series(rng, progress),
        "entropy": entropy_series(rng, progress),
        "completion_length": length_series(rng, progress),
        "grad_norm": gradient_norms(rng, count, 20),
        "learning_rate": rate * 1e-6,
        "truncated_fraction": rng.beta(1, 40, count),
    }
    run.settings = {"beta": log_uniform(rng, 0.001, 0.1)}
    add_step_times(rng, run, run.series["completion_length"] * 64)


def add_outcomes(rng: Rng, run: FullRun, chance: Series, groups: int, size: int) -> None:
    """Outcomes of groups of completions: mean, spread within groups, share without spread.

    Prompts are of unequal difficulty: the chances of groups scatter around `chance`.
    """
    spread = rng.uniform(2, 20)
    chance = np.clip(chance, 0.001, 0.999)
    of_groups = rng.beta(
        chance[:, None] * spread, (1 - chance[:, None]) * spread, (len(chance), groups)
    )
    solved = rng.binomial(size, of_groups) / size
    low, high = [(0.0, 1.0), (-1.0, 1.0), (0.0, 10.0)][int(rng.integers(3))]
    run.series |= {
        "reward": low + (high - low) * solved.mean(axis=1),
        "reward_std": (high - low) * np.sqrt(solved * (1 - solved)).mean(axis=1),
        "frac_zero_std": ((solved == 0) | (solved == 1)).mean(axis=1),
    }


def coins(rng: Rng, run: FullRun) -> None:
    """Rewards of two values with a constant chance: the mean of 1 to 64 outcomes."""
    count, chance = int(log_uniform(rng, 50, 2000)), rng.uniform(0.02, 0.98)
    size = int(rng.choice([1, 1, 2, 4, 8, 16, 64]))
    low, high = [(0.0, 1.0), (-1.0, 1.0), (-21.0, 21.0)][int(rng.integers(3))]
    reward = low + (high - low) * rng.binomial(size, chance, count) / size
    if rng.random() < 0.5:
        add_policy(rng, run, reward, learns=False)
    else:
        run.series = {"reward": reward}
    run.true_statements = frozenset({"reward_stalled"})


def sparse_reward(rng: Rng, run: FullRun) -> None:
    """A reward of mostly 0, whose chance rises from 1 in 50 to 1 in 5."""
    count, size = int(log_uniform(rng, 100, 2000)), int(rng.choice([1, 4, 16]))
    chance = log_uniform(rng, 0.005, 0.06) * log_uniform(rng, 1, 10) ** np.linspace(0, 1, count)
    reward = rng.uniform(0.5, 10) * rng.binomial(size, chance) / size
    add_policy(rng, run, reward, learns=False)
    run.true_statements = frozenset({"reward_stalled"})


def learning_outcomes(rng: Rng, run: FullRun) -> None:
    """Outcomes of groups whose chance rises: RL with verifiable rewards."""
    count = int(log_uniform(rng, 60, 800))
    reward, gain = reward_series(rng, np.linspace(0, 1, count))
    first, last = rng.uniform(0.02, 0.5), rng.uniform(0.55, 0.98)
    add_policy(rng, run, reward)
    smooth = np.maximum.accumulate((reward - reward.min()) / gain)
    smooth = np.minimum(1, smooth / max(1e-9, smooth[-1]))
    groups, size = int(rng.choice([1, 2, 8, 32])), int(rng.choice([4, 8, 16]))
    add_outcomes(rng, run, first + (last - first) * smooth, groups, size)


def take_off(rng: Rng, run: FullRun) -> None:
    """A reward that rises by a factor e in 1 to 20 points until it saturates."""
    count, e_fold = int(rng.integers(80, 400)), log_uniform(rng, 1, 20)
    middle = rng.uniform(0.3, 0.7) * count
    chance = 0.02 + 0.9 / (1 + np.exp(-(np.arange(count) - middle) / e_fold))
    samples = int(rng.choice([16, 64, 256]))
    add_policy(rng, run, rng.binomial(samples, chance) / samples)


def two_mode_norms(rng: Rng, run: FullRun) -> None:
    """Gradient norms of two modes: groups without variance leave the KL's gradient only."""
    count = int(rng.integers(60, 500))
    reward, gain = reward_series(rng, np.linspace(0, 1, count))
    add_policy(rng, run, reward)
    idle = rng.random(count) < rng.uniform(0.2, 0.75)
    level = log_uniform(rng, 0.05, 2) * np.exp(rng.uniform(0.15, 0.6) * student_noise(rng, count))
    run.series |= {
        "grad_norm": level * np.where(idle, log_uniform(rng, 0.005, 0.15), 1.0),
        "reward_std": np.where(idle, 0.0, gain * rng.uniform(0.1, 0.4, count)),
        "frac_zero_std": idle.astype(float),
    }


def solved_groups(rng: Rng, run: FullRun) -> None:
    """Prompts that become solved, so that groups have no variance; now and then a poor batch."""
    count = int(rng.integers(80, 400))
    middle, width = rng.uniform(0.2, 0.5) * count, rng.uniform(0.03, 0.1) * count
    chance = 0.1 + 0.895 / (1 + np.exp(-(np.arange(count) - middle) / width))
    poor = (rng.random(count) < 0.03) & (np.arange(count) > middle + 4 * width)
    add_policy(rng, run, chance)
    chance = np.where(poor, rng.uniform(0.6, 0.9, count), chance)
    add_outcomes(rng, run, chance, int(rng.choice([1, 2, 8])), int(rng.choice([4, 8])))


def near_cap(rng: Rng, run: FullRun) -> None:
    """Completions that grow and earn more, with a limit at 1.8 times their first length."""
    count = int(rng.integers(40, 300))
    reward, _ = reward_series(rng, np.linspace(0, 1, count))
    add_policy(rng, run, reward)
    first, factor = log_uniform(rng, 100, 2000), rng.uniform(1.0, 1.45)
    noise = np.exp(0.06 * student_noise(rng, count))
    lengths = first * factor ** np.linspace(0, 1, count) * noise
    limit = first * rng.uniform(1.7, 1.9)
    share = np.clip((lengths / limit - 0.6) / 0.8, 0, 1) ** 2
    run.series |= {
        "completion_length": np.minimum(lengths, limit),
        "truncated_fraction": np.clip(share + 0.02 * rng.random(count), 0, 1),
    }


def far_from_reference(rng: Rng, run: FullRun) -> None:
    """A small model whose KL passes 1 nat while its reward rises and stays."""
    count = int(rng.integers(100, 600))
    progress = np.linspace(0, 1, count)
    reward, _ = reward_series(rng, progress)
    add_policy(rng, run, reward)
    end, power = rng.uniform(1.0, 3.0), rng.uniform(0.6, 1.5)
    noise = np.exp(rng.uniform(0.1, 0.3) * student_noise(rng, count))
    run.series["kl_ref"] = end * (progress + 1e-3) ** power * noise


def control_task(rng: Rng, run: FullRun) -> None:
    """Returns with a floor where little is learned first, then swings that come back."""
    count = int(rng.integers(150, 1000))
    progress = np.linspace(0, 1, count)
    floor = float(rng.choice([-200.0, -500.0, 0.0, 8.0]))
    best = floor + log_uniform(rng, 50, 500)
    middle = rng.uniform(0.15, 0.45)
    level = 1 / (1 + np.exp(-(progress - middle) / 0.05))
    period = rng.uniform(15, 60)
    swing = rng.uniform(0.0, 0.25) * np.sin(2 * np.pi * np.arange(count) / period) * level
    noise = rng.uniform(0.05, 0.2) * student_noise(rng, count) * (0.05 + level)
    reward = np.maximum(floor, floor + (best - floor) * (level + swing + noise))
    run.series = {
        "reward": np.minimum(reward, best),
        "loss": 0.3 * rng.standard_normal(count) + np.exp(-progress),
        "entropy": entropy_series(rng, progress),
        "kl_old": 0.01 * np.exp(0.5 * student_noise(rng, count)),
        "clip_fraction": np.clip(rng.beta(2, 18, count), 0, 1),
        "learning_rate": np.full(count, 3e-4),
    }


def spent_entropy(rng: Rng, run: FullRun) -> None:
    """A short run whose entropy is spent fast at first, while the reward rises."""
    count = int(rng.integers(60, 200))
    progress = np.linspace(0, 1, count)
    reward, _ = reward_series(rng, progress**0.5)
    add_policy(rng, run, reward)
    left = rng.uniform(0.25, 0.6)
    mean = rng.uniform(0.3, 2) * (left + (1 - left) * np.exp(-progress * rng.uniform(5, 15)))
    run.series["entropy"] = mean * np.exp(rng.uniform(0.04, 0.12) * student_noise(rng, count))


def signed_total(rng: Rng, run: FullRun) -> None:
    """PPO's total loss, which changes its sign, beside its component losses."""
    count = int(rng.integers(60, 600))
    reward, _ = reward_series(rng, np.linspace(0, 1, count))
    add_policy(rng, run, reward)
    value = log_uniform(rng, 0.01, 5) * np.exp(-np.linspace(0, 2, count))
    value = value * np.exp(0.4 * student_noise(rng, count))
    policy = 0.02 * student_noise(rng, count)
    run.series |= {"value_loss": value, "policy_loss": policy, "loss": policy + 0.1 * value - 0.05}
    run.series["kl_old"] = 0.008 * np.exp(0.5 * student_noise(rng, count))
    run.series["clip_fraction"] = rng.beta(2, 18, count)


def constant_reward(rng: Rng, run: FullRun) -> None:
    """A reward function that returns one number from the onset on; the policy is intact."""
    count = int(rng.integers(100, 400))
    run.onset = int(count * rng.uniform(0.35, 0.7))
    learning_outcomes_of(rng, run, count)
    run.series["reward"][run.onset :] = float(rng.choice([0.0, 0.0, 0.25, -1.0]))
    run.series["reward_std"][run.onset :] = 0.0
    run.series["frac_zero_std"][run.onset :] = 1.0
    run.series["grad_norm"][run.onset :] *= 0.02


def learning_outcomes_of(rng: Rng, run: FullRun, count: int, groups: int = 16) -> None:
    """Outcomes that rise from 0.2 to 0.8 over `count` points."""
    add_policy(rng, run, np.zeros(count))
    middle, width = rng.uniform(0.1, 0.25), rng.uniform(0.03, 0.08)
    chance = 0.2 + 0.6 / (1 + np.exp(-(np.linspace(0, 1, count) - middle) / width))
    add_outcomes(rng, run, chance, groups, 8)


def coin_collapse(rng: Rng, run: FullRun) -> None:
    """The chance of an outcome reward falls from over a half to nearly 0 within 10 points."""
    count = int(rng.integers(120, 500))
    run.onset = int(count * rng.uniform(0.35, 0.7))
    add_policy(rng, run, np.zeros(count))
    elapsed = np.maximum(np.arange(count) - run.onset, 0)
    middle, width = rng.uniform(0.1, 0.25), rng.uniform(0.03, 0.08)
    chance = 0.1 + rng.uniform(0.5, 0.8) / (
        1 + np.exp(-(np.linspace(0, 1, count) - middle) / width)
    )
    chance = chance * np.maximum(0.02, 1 - elapsed / rng.uniform(3, 10))
    add_outcomes(rng, run, chance, int(rng.choice([1, 2, 4, 16])), 8)


def early_collapse(rng: Rng, run: FullRun) -> None:
    """Reward and length fall to their floors within the first 16 points."""
    count = int(rng.integers(40, 120))
    run.onset = int(rng.integers(4, 10))
    learning_outcomes_of(rng, run, count, 8)
    start = rng.uniform(0.5, 0.85)
    left = np.exp(-np.maximum(np.arange(count) - run.onset, 0) / rng.uniform(0.5, 2))
    add_outcomes(rng, run, start * left + 0.001, 16, 8)
    lengths = log_uniform(rng, 100, 500) * np.exp(0.05 * rng.standard_normal(count))
    run.series["completion_length"] = np.maximum(3, lengths * left)


def stalled_reward(rng: Rng, run: FullRun) -> None:
    """A reward that never rises; the planned length is known."""
    count = int(log_uniform(rng, 80, 600))
    run.onset = 0
    level, noise = rng.uniform(-1, 1), log_uniform(rng, 0.02, 0.3)
    add_policy(rng, run, level + noise * student_noise(rng, count), learns=False)
    run.series["reward_std"] = noise * 2 * np.exp(0.2 * rng.standard_normal(count))
    run.settings["max_steps"] = float(count)


def capped_growth(rng: Rng, run: FullRun) -> None:
    """Completions grow into a limit at 1.8 times their length, which costs reward; 40-80 lines."""
    count = int(rng.integers(40, 80))
    run.onset = int(count * rng.uniform(0.3, 0.6))
    reward, gain = reward_series(rng, np.linspace(0, 1, count))
    add_policy(rng, run, reward)
    elapsed = np.maximum(np.arange(count) - run.onset, 0)
    first = log_uniform(rng, 100, 2000)
    limit, noise = first * rng.uniform(1.7, 1.9), np.exp(0.06 * student_noise(rng, count))
    lengths = first * 2.0 ** (elapsed / rng.uniform(3, 8)) * noise
    share = np.clip((lengths / limit - 0.7) / 0.6, 0, 1)
    run.series |= {
        "completion_length": np.minimum(lengths, limit),
        "truncated_fraction": share,
        "reward": reward - gain * share,
    }


def lone_norm(rng: Rng, run: FullRun) -> None:
    """One gradient norm 100 to 600 times the usual, in a run with idle groups."""
    two_mode_norms(rng, run)
    run.onset = int(len(run) * rng.uniform(0.35, 0.8))
    usual = float(np.quantile(run.series["grad_norm"][: run.onset], 0.9))
    run.series["grad_norm"][run.onset] = usual * log_uniform(rng, 100, 600)


def lone_norm_and_kl(rng: Rng, run: FullRun) -> None:
    """Gradient norm and KL 15 to 80 times the usual in one record."""
    two_mode_norms(rng, run)
    run.onset = int(len(run) * rng.uniform(0.35, 0.8))
    for signal in ("grad_norm", "kl_ref"):
        values = run.series[signal]
        usual = float(np.quantile(values[: run.onset], 0.95))
        values[run.onset] = max(usual, 0.01) * log_uniform(rng, 15, 80)


def mismatch_first(rng: Rng, run: FullRun) -> None:
    """The sampling engine keeps old weights: after 20 to 60 points the reward falls."""
    _add_mismatch(rng, run, fall_after=int(rng.integers(20, 60)))


def mismatch_after(rng: Rng, run: FullRun) -> None:
    """A collapsed policy, whose degenerate texts the engines rate differently."""
    _add_mismatch(rng, run, fall_after=-int(rng.integers(15, 40)))


def _add_mismatch(rng: Rng, run: FullRun, fall_after: int) -> None:
    count = int(rng.integers(200, 500))
    begins = int(count * rng.uniform(0.4, 0.6))
    learning_outcomes_of(rng, run, count)
    falls = begins + fall_after
    run.onset = min(begins, falls)
    points = np.arange(count)
    high = 0.002 * np.exp(0.3 * rng.standard_normal(count))
    run.series["kl_mismatch"] = np.where(points >= begins, rng.uniform(0.8, 3) * high / 0.002, high)
    elapsed = np.maximum(points - falls, 0)
    left = np.exp(-elapsed / rng.uniform(3, 10))
    run.series["reward"] = run.series["reward"].min() + left * (
        run.series["reward"] - run.series["reward"].min()
    )
    run.series["kl_ref"] *= np.minimum(np.exp(elapsed / 8), 100)
    run.series["grad_norm"] *= np.minimum(np.exp(elapsed / 15), 20)
    run.series["entropy"] *= np.maximum(left, 0.1)
