"""Keys of frameworks and users are mapped to signal names."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from sentinel.signals.catalogue import (
    SIGNALS,
    CombineRule,
    canonical_name,
    get_combine_rule,
    normalize_key,
)

LOGGED = {
    "HF Trainer": {
        "loss": "loss",
        "train/loss": "loss",
        "train_loss": "loss",
        "grad_norm": "grad_norm",
        "learning_rate": "learning_rate",
        "epoch": "epoch",
        "num_input_tokens_seen": "tokens_seen",
        "train_samples_per_second": "samples_per_second",
        "train_tokens_per_second": "tokens_per_second",
        "eval_loss": "eval_loss",
        "eval/loss": "eval_loss",
    },
    "TRL 1.16, GRPO and RLOO": {
        "kl": "kl_ref",
        "reward": "reward",
        "reward_std": "reward_std",
        "frac_reward_zero_std": "frac_zero_std",
        "entropy": "entropy",
        "clip_ratio/region_mean": "clip_fraction",
        "completions/mean_length": "completion_length",
        "completions/max_length": "completion_length_max",
        "completions/clipped_ratio": "truncated_fraction",
        "num_tokens": "tokens_seen",
        "step_time": "step_time",
        "policy_loss": "policy_loss",
        "entropy_coef": "entropy_coef",
        "mean_token_accuracy": "token_accuracy",
        "sampling/sampling_logp_difference/mean": "kl_mismatch",
        "sampling/importance_sampling_ratio/min": "importance_ratio_min",
        "sampling/importance_sampling_ratio/mean": "importance_ratio_mean",
        "sampling/importance_sampling_ratio/max": "importance_ratio_max",
    },
    "TRL, older": {
        "completion_length": "completion_length",
        "clip_ratio": "clip_fraction",
        "objective/kl": "kl_ref",
        "objective/scores": "reward",
        "objective/rlhf_reward": "reward_total",
        "policy/approxkl_avg": "kl_old",
        "policy/clipfrac_avg": "clip_fraction",
        "policy/entropy_avg": "entropy",
        "loss/policy_avg": "policy_loss",
        "loss/value_avg": "value_loss",
        "val/clipfrac_avg": "value_clip_fraction",
        "val/ratio": "importance_ratio_mean",
        "ppo/val/var_explained": "explained_variance",
    },
    "TRL, preferences": {
        "rewards/chosen": "reward_chosen",
        "rewards/rejected": "reward_rejected",
        "rewards/margins": "reward_margin",
        "rewards/accuracies": "preference_accuracy",
        "mean_reward": "reward",
    },
    "verl": {
        "actor/pg_loss": "policy_loss",
        "actor/loss": "loss",
        "critic/vf_loss": "value_loss",
        "val/loss": "eval_loss",
        "actor/kl_loss": "kl_ref",
        "actor/reward_kl_penalty": "kl_ref",
        "critic/kl": "kl_ref",
        "actor/ppo_kl": "kl_old",
        "rollout_corr/kl": "kl_mismatch",
        "actor/kl_coef": "kl_coef",
        "actor/reward_kl_penalty_coeff": "kl_coef",
        "critic/kl_coeff": "kl_coef",
        "critic/score/mean": "reward",
        "critic/rewards/mean": "reward_total",
        "actor/entropy": "entropy",
        "actor/grad_norm": "grad_norm",
        "critic/grad_norm": "critic_grad_norm",
        "actor/lr": "learning_rate",
        "response_length/mean": "completion_length",
        "response_length/max": "completion_length_max",
        "response_length/clip_ratio": "truncated_fraction",
        "actor/pg_clipfrac": "clip_fraction",
        "critic/vf_clipfrac": "value_clip_fraction",
        "critic/vf_explained_var": "explained_variance",
        "critic/advantages/mean": "advantage_mean",
        "perf/total_num_tokens": "tokens",
        "perf/throughput": "tokens_per_second_per_gpu",
        "perf/mfu/actor": "mfu",
        "perf/time_per_step": "step_time",
        "timing_s/gen": "generation_time",
        "training/global_step": "global_step",
    },
    "OpenRLHF": {
        "gpt_loss": "loss",
        "critic_loss": "value_loss",
        "ppo_kl": "kl_old",
        "vllm_kl": "kl_mismatch",
        "rollout/reward_mean": "reward",
        "rollout/reward_std": "reward_std",
        "chosen_reward": "reward_chosen",
        "reject_reward": "reward_rejected",
        "entropy_loss": "entropy",
        "actor_grad_norm": "grad_norm",
        "actor_lr": "learning_rate",
        "rollout/response_length_mean": "completion_length",
        "rollout/truncated_rate": "truncated_fraction",
        "ppo_clip_ratio": "clip_fraction",
        "timing/step_total": "step_time",
        "timing/generation": "generation_time",
    },
    "Lightning": {
        "train_loss_step": "loss",
        "train loss": "loss",
        "train_loss_local": "loss",
        "val_loss": "eval_loss",
        "lr-AdamW": "learning_rate",
        "lr-SGD/pg1": "learning_rate",
    },
    "DeepSpeed": {
        "Train/Samples/lr": "learning_rate",
        "Train/Samples/train_loss": "loss",
        "Train/Samples/loss_scale": "loss_scale",
    },
    "stable-baselines3": {
        "rollout/ep_rew_mean": "reward",
        "train/approx_kl": "kl_old",
        "train/clip_fraction": "clip_fraction",
        "train/policy_gradient_loss": "policy_loss",
        "train/value_loss": "value_loss",
        "train/explained_variance": "explained_variance",
        "train/ent_coef": "entropy_coef",
        "train/learning_rate": "learning_rate",
        "time/fps": "samples_per_second",
    },
    "CleanRL": {
        "charts/episodic_return": "reward",
        "charts/learning_rate": "learning_rate",
        "charts/SPS": "samples_per_second",
        "losses/policy_loss": "policy_loss",
        "losses/value_loss": "value_loss",
        "losses/entropy": "entropy",
        "losses/approx_kl": "kl_old",
        "losses/clipfrac": "clip_fraction",
        "losses/explained_variance": "explained_variance",
    },
    "user code": {"train/average_reward": "reward", "Train Loss": "loss", "KL": "kl_ref"},
}

KEYS = [pytest.param(key, name, id=f"{framework}: {key}") for framework, keys in LOGGED.items()
        for key, name in keys.items()]  # fmt: skip


@pytest.mark.parametrize(("key", "name"), KEYS)
def test_a_logged_key_is_mapped(key, name):
    assert canonical_name(key) == name
    assert name in SIGNALS


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("form", ["eval/{}", "eval_{}", "val/{}", "validation_{}", "train/eval_{}"])
def test_held_out_keys_are_never_mapped_to_training_signals(signal, form):
    named = [canonical_name(form.format(name)) for name in (signal, *SIGNALS[signal].aliases)]

    # TRL's PPO logs its value model under "val/".
    known = {s.name for s in SIGNALS.values() if any(a.startswith("val/") for a in s.aliases)}
    assert not {name for name in named if name in SIGNALS} - known - {"eval_loss"}
    assert form.format(signal).startswith("val/") or named[0] == f"eval_{signal}"


def test_test_data_is_neither_training_nor_evaluation():
    assert canonical_name("test/loss") == canonical_name("test_loss") == "test_loss"


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("rewards/format_reward/mean", "rewards/format_reward/mean"),
        ("train/rewards/format_reward/mean", "rewards/format_reward/mean"),
        ("rewards/format_reward", "rewards/format_reward/mean"),
        ("rewards/Format/std", "rewards/Format/std"),
        ("rewards/max", "rewards/max"),
        ("rewards/chosen", "reward_chosen"),
        ("rewards/mean", "reward"),
        ("rewards/std", "reward_std"),
    ],
)
def test_a_reward_function_has_one_name_in_all_versions(key, name):
    assert canonical_name(key) == name


@pytest.mark.parametrize(
    "key", ["my_metric", "train/my_metric", "eval_my_metric", "", "/", "eval_"]
)
def test_an_unknown_key_is_unchanged(key):
    assert canonical_name(key) == key


def test_no_two_signals_claim_one_key():
    """With a shared alias the result would depend on the order of the catalogue."""
    keys = Counter(chain.from_iterable((s.name, *s.aliases) for s in SIGNALS.values()))

    assert [key for key, times in keys.items() if times > 1] == []


@pytest.mark.parametrize("signal", SIGNALS.values(), ids=SIGNALS)
def test_an_entry_of_the_catalogue_is_complete(signal):
    assert signal.help.endswith(".")
    assert signal.name == signal.name.lower()
    assert all(
        alias == normalize_key(alias) and canonical_name(alias) == signal.name
        for alias in signal.aliases
    )
    assert signal.metric.endswith(f"_{signal.unit}" if signal.unit else signal.metric)
    assert signal.entity in ("", "gpu", "disk", "host")


def test_no_two_signals_share_a_metric():
    families = [f for s in SIGNALS.values() for f in (s.metric, *s.rank_metrics)]

    assert len(families) == len(set(families))


def test_unknown_signals_are_means():
    assert get_combine_rule("mine") is CombineRule.MEAN
    assert get_combine_rule("grad_norm_local") is CombineRule.NORM
