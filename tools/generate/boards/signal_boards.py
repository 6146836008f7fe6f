"""The boards RL and Training: the signals of the catalogue by algorithm and by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sentinel.signals.catalogue import SIGNAL_GROUPS, SIGNALS
from tools.generate.boards.shared_panels import (
    ATTEMPT_VARIABLE,
    CLUSTER,
    CLUSTER_VARIABLE,
    RUN,
    RUN_MATCHERS,
    RUN_VARIABLE,
    lines_panel,
    rows,
    run_board,
    signal_panel,
)
from tools.generate.detector_docs import DetectorDoc
from tools.generate.panels import LabelVariable, PanelOptions, PanelQuery, table_panel

RL_OPEN_ROWS, TRAINING_OPEN_ROWS = 2, 3
"""Number of rows that a board shows without a click."""


def _names(group: str) -> list[str]:
    """The signals of a group of the catalogue."""
    return [signal.name for signal in SIGNAL_GROUPS[group]]


RL_ROWS: Mapping[str, Sequence[str]] = {
    "Policy": (
        *("kl_ref", "reward", "entropy", "kl_old", "clip_fraction", "policy_loss"),
        *("kl_coef", "entropy_coef"),
    ),
    "Groups of completions: GRPO, RLOO": (
        *("reward_std", "frac_zero_std", "advantage_std", "advantage_mean"),
        *("completion_length", "completion_length_max", "truncated_fraction"),
    ),
    "Sampling engine: mismatch and age of the samples": (
        *("kl_mismatch", "importance_ratio_mean", "importance_ratio_max", "importance_ratio_min"),
        *("rollout_staleness", "rollout_staleness_max", "stale_fraction"),
        *("effective_sample_fraction", "generation_time", "weight_sync_time"),
    ),
    "Value model: PPO": (
        *("value_loss", "explained_variance", "value_clip_fraction", "critic_grad_norm"),
        "reward_total",
    ),
    "Continuous actions and Q-values: control": ("action_std", "q_value"),
    "Pairs of answers: DPO and reward models": (
        *("preference_accuracy", "reward_margin", "reward_chosen", "reward_rejected"),
    ),
    "Sampled texts": [n for n in _names("Completions and samples") if n.startswith("sample_")],
    "Tools and environments": _names("Tools and environments"),
}
"""Signals of the rows of the board RL. A row names the algorithms that log its signals."""

TRAINING_ROWS: Mapping[str, Sequence[str]] = {
    "Loss": ("loss", "eval_loss", "token_accuracy"),
    "Optimiser": (
        *("grad_norm", "learning_rate", "logged_loss", "grad_norm_local", "logged_grad_norm"),
        "optimizer_steps",
    ),
    "Speed": (
        *("step_time", "data_wait", "compute_time", "tokens_per_second"),
        *("tokens_per_second_per_gpu", "mfu"),
    ),
    "Progress": (
        *("global_step", "epoch", "tokens", "tokens_seen", "samples_per_second", "accuracy"),
    ),
    "Mixture of experts": _names("Mixture of experts"),
    "Half precision": ("loss_scale", "skipped_steps"),
    "Adversarial training": (
        *("discriminator_loss", "generator_loss", "second_discriminator_loss"),
        *("second_generator_loss", "alternating_optimizers"),
    ),
    "Curvature and distance": _names("Curvature and distance"),
}
"""Signals of the rows of the board Training."""


def rl_board(docs: Sequence[DetectorDoc]) -> str:
    """JSON of the board of the policy: KL, reward, entropy, lengths, clipping, staleness."""
    by_title = _signal_panels(RL_ROWS, docs)
    rewards = lines_panel(
        "Reward by function",
        "Mean reward of each reward function of the run.",
        PanelQuery(
            f'sentinel_logged_value{{{RUN_MATCHERS},key=~"rewards/.+/mean"}}',
            "{{key}}",
        ),
    )
    first, second, *_ = by_title.values()
    first.append(rewards)
    second.append(_settings_panel())
    return run_board(
        "RL",
        "sentinel-rl",
        "Signals of a policy that is trained by reinforcement learning or on preferences.",
        [_run_panel(), _kl_panel(), *rows(by_title, RL_OPEN_ROWS)],
        (
            CLUSTER_VARIABLE,
            LabelVariable("algorithm", f"sentinel_run_info{{{CLUSTER}}}", is_multi=True),
            LabelVariable("run", f'sentinel_run_info{{{CLUSTER},algorithm=~"$algorithm"}}'),
            ATTEMPT_VARIABLE,
        ),
    )


def _run_panel() -> Any:
    labels = ("algorithm", "framework", "model", "world_size")
    return _small_table(
        "Algorithm",
        "Which rows of this board have data depends on the algorithm.",
        f"max by ({', '.join(labels)}) (sentinel_run_info{RUN})",
        labels,
    )


def _kl_panel() -> Any:
    labels = ("signal", "pair", "estimator", "reduction")
    return _small_table(
        "Kinds of KL",
        "Between which two the run measures each KL, and how: a limit of one estimator does not "
        "fit another.",
        f"max by ({', '.join(labels)}) (sentinel_policy_kl_info{RUN})",
        labels,
    )


def _settings_panel() -> Any:
    names = 'name=~".*(kl|beta|clip|epsilon|reward|temperature).*"'
    setting = PanelQuery(f"max by (name) (sentinel_run_setting{{{RUN_MATCHERS},{names}}})")
    options = PanelOptions(
        "Settings",
        "Settings of the run whose names contain KL, clipping, reward or sampling. "
        "Metric: sentinel_run_setting",
        unit="none",
        width=8,
    )
    return table_panel(options, setting, {"Value": setting}, {"name": "Setting"})


def _small_table(title: str, text: str, expr: str, labels: Sequence[str]) -> Any:
    metric = expr.partition("(sentinel")[2].partition("{")[0]
    options = PanelOptions(title, f"{text} Metric: sentinel{metric}", unit="none", height=4)
    titles = {name: name.capitalize().replace("_", " ") for name in labels}
    return table_panel(options, PanelQuery(expr), {}, titles)


def training_board(docs: Sequence[DetectorDoc]) -> str:
    """JSON of the board of signals that every training has: loss, optimiser, speed, progress."""
    values = lines_panel(
        "Other logged values",
        "Values that the run logs under keys that are not in the catalogue.",
        PanelQuery(f"sentinel_logged_value{RUN}", "{{key}}"),
        width=24,
    )
    return run_board(
        "Training",
        "sentinel-training",
        "Loss, optimiser, speed and progress of a run.",
        rows(_signal_panels(TRAINING_ROWS, docs) | {"Other values": [values]}, TRAINING_OPEN_ROWS),
        [CLUSTER_VARIABLE, RUN_VARIABLE, ATTEMPT_VARIABLE],
    )


def _signal_panels(
    names_by_title: Mapping[str, Sequence[str]], docs: Sequence[DetectorDoc]
) -> dict[str, list[Any]]:
    return {
        title: [signal_panel(SIGNALS[name], docs) for name in names]
        for title, names in names_by_title.items()
    }
