"""SIGNALS: the catalogue of everything sentinel measures, and its only definition.

One line here is a metric on `/metrics`, a panel, a reference row, and the names by which
frameworks and people log the same thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Combine(Enum):
    """How the ranks' values become the run's one value."""

    MEAN = "mean"
    """Mean, weighted by the `weight` each rank gave (1 where it gave none)."""
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    SAME = "same"
    """Every rank should say the same; the lowest rank that spoke is believed."""


WEIGHT = "weight"
"""Reserved value of a record: how many samples its means are over."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One measured quantity.

    `unit` is a Prometheus base unit, or empty for plain numbers. `metric` names the Prometheus
    family without the prefix `sentinel_`; empty means `name` plus unit. `aliases` are other names
    of the same quantity, compared without case, after a leading `train/`.
    """

    name: str
    unit: str
    combine: Combine
    help: str
    aliases: tuple[str, ...] = ()
    family: str = ""

    @property
    def metric(self) -> str:
        """Prometheus family name, unit last and never twice."""
        return f"sentinel_{self._stem}{self._suffix}"

    @property
    def rank_metrics(self) -> tuple[str, str, str]:
        """Families of the lowest and the highest rank's value, and of the worst rank's number.

        >>> SIGNALS["kl_ref"].rank_metrics[1:]
        ('sentinel_policy_kl_rank_max_nats', 'sentinel_policy_kl_worst_rank')
        """
        lowest, highest = (f"sentinel_{self._stem}_rank_{x}{self._suffix}" for x in ("min", "max"))
        return lowest, highest, f"sentinel_{self._stem}_worst_rank"

    @property
    def _stem(self) -> str:
        stem = self.family or self.name
        return stem.removesuffix(f"_{self.unit}") if self.unit else stem

    @property
    def _suffix(self) -> str:
        return f"_{self.unit}" if self.unit else ""


_MEAN, _SUM, _MAX, _SAME = Combine.MEAN, Combine.SUM, Combine.MAX, Combine.SAME

_CATALOGUE = (
    Signal(
        "loss",
        "",
        _MEAN,
        "Training loss as it is optimised, before any filter.",
        ("train_loss", "training_loss", "loss/train", "actor/loss", "gpt_loss", "total_loss"),
    ),
    Signal(
        "eval_loss",
        "",
        _MEAN,
        "Loss on held-out data.",
        ("eval/loss", "val_loss", "val/loss", "valid_loss", "validation_loss"),
    ),
    Signal(
        "kl_ref",
        "nats",
        _MEAN,
        "Divergence of the policy from its frozen reference.",
        (
            "kl",
            "objective/kl",
            "actor/kl_loss",
            "actor/reward_kl_penalty",
            "critic/kl",
            "kl_loss",
            "kl_divergence",
            "mean_kl",
        ),
        family="policy_kl",
    ),
    Signal(
        "kl_old",
        "nats",
        _MEAN,
        "Divergence of the policy from the one that sampled: step size.",
        ("approx_kl", "approxkl", "policy/approxkl_avg", "actor/ppo_kl", "ppo_kl"),
        family="policy_step_kl",
    ),
    Signal(
        "reward",
        "",
        _MEAN,
        "Mean task reward of the sampled completions, before any KL penalty.",
        (
            "reward_mean",
            "reward/mean",
            "rewards/mean",
            "mean_reward",
            "objective/scores",
            "critic/score/mean",
            "rollout/reward_mean",
            "rollout/ep_rew_mean",
            "ep_rew_mean",
            "episode_reward",
            "avg_reward",
        ),
    ),
    Signal(
        "reward_std",
        "",
        _MEAN,
        "Spread of the reward within the batch.",
        ("reward/std", "rollout/reward_std"),
    ),
    Signal(
        "entropy",
        "nats",
        _MEAN,
        "Mean entropy of the policy's next-token distribution.",
        ("policy/entropy_avg", "actor/entropy", "actor/entropy_loss", "entropy_loss"),
    ),
    Signal(
        "grad_norm",
        "",
        _MAX,
        "L2 norm of the gradient before clipping.",
        (
            "gradient_norm",
            "actor/grad_norm",
            "actor_grad_norm",
            "global_grad_norm",
        ),
    ),
    Signal(
        "learning_rate",
        "",
        _SAME,
        "Learning rate of the first parameter group.",
        ("lr", "actor/lr", "actor_lr"),
    ),
    Signal(
        "completion_length",
        "tokens",
        _MEAN,
        "Mean length of the sampled completions.",
        (
            "completions/mean_length",
            "response_length/mean",
            "rollout/response_length_mean",
            "response_length",
        ),
        family="completion_length_mean",
    ),
    Signal(
        "clip_fraction",
        "ratio",
        _MEAN,
        "Share of tokens whose probability ratio was clipped.",
        ("clip_ratio/region_mean", "actor/pg_clipfrac", "policy/clipfrac_avg", "ppo_clip_ratio"),
    ),
    Signal(
        "step_time",
        "seconds",
        _MAX,
        "Wall time from one optimiser step to the next.",
        ("step_seconds", "perf/time_per_step", "timing_s/step", "timing/step_total"),
        family="step_duration",
    ),
    Signal(
        "global_step",
        "",
        _SAME,
        "Step number as the trainer itself counts it; must never go back.",
        ("training/global_step", "trainer/global_step"),
    ),
    Signal(
        "optimizer_steps",
        "",
        _SAME,
        "Optimiser steps counted by the hook in this attempt.",
    ),
    Signal("epoch", "", _SAME, "Passes over the training data.", ("training/epoch",)),
)

SIGNALS: dict[str, Signal] = {signal.name: signal for signal in _CATALOGUE}

_NAMES: dict[str, str] = {
    alias: signal.name for signal in _CATALOGUE for alias in (signal.name, *signal.aliases)
}


def canonical(key: str) -> str:
    """Our name for a logged key; the key itself where the catalogue has none.

    >>> canonical("train/KL"), canonical("objective/scores"), canonical("my_metric")
    ('kl_ref', 'reward', 'my_metric')
    """
    plain = key.lower().removeprefix("train/")
    return _NAMES.get(plain, key)


def combine_rule(name: str) -> Combine:
    """How ranks combine for that signal; unknown signals are means."""
    signal = SIGNALS.get(name)
    return signal.combine if signal else Combine.MEAN
