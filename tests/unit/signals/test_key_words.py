"""Keys that are not in the catalogue name a signal by their words."""

from __future__ import annotations

import pytest

from sentinel.signals.key_words import infer_signal, nearest_signal

NAMED = {
    "tool_error_fraction": ["tools/error_rate", "tool_call_failure_ratio", "env/tool_error_frac"],
    "dropped_token_fraction": ["moe/dropped_token_fraction", "expert/tokens_dropped_frac"],
    "rollout_staleness": ["async/staleness_mean", "avg_sample_staleness"],
    "loss": [
        "average_loss", "train_mean_nll", "reduced_train_loss", "lm loss", "loss_total",
        "lm-loss-training/lm loss", "train_loss_epoch", "ppo/loss/total", "loss/loss",
        "train_inner/loss", "info/learner/default_policy/learner_stats/total_loss", "trainLoss",
        "trainloss", "nll_loss", "train/cross_entropy_loss", "cross_entropy", "train/box_loss",
        "loss_bbox", "loss_box_reg", "loss_ema", "train_ce", "ppl", "train_perplexity_step",
    ],
    "eval_loss": [
        "average_val_loss", "lm loss validation", "valid_nll_loss", "loss_val", "valLoss",
        "valid_ppl", "test_loss", "val loss is",
    ],
    "policy_loss": [
        "act_loss", "policy/loss", "loss/policy_gradient_loss", "Loss/surrogate", "LossPi",
    ],
    "value_loss": [
        "value/loss", "loss/value_function_loss", "Loss/value_function", "losses/qf1_loss",
        "losses/td_loss", "Q1Loss", "Critic 1 Loss", "critic_loss/2",
    ],
    "reward": [
        "RewardMean", "MeanReward", "AverageReturn", "EpRet", "AverageEpRet", "Ep_Reward", "score",
        "return", "avg_return", "episode_reward_mean", "env_runners/episode_return_mean",
        "eprewmean", "Environment/Cumulative Reward", "mean_100ep_reward", "returns_stat/mean",
        "Train_AverageReturn", "rewards/step", "Reward_avg100", "cum_reward",
        "train/success_rate", "rollout/success_rate", "sim/train/return",
    ],
    "eval_reward": [
        "AverageTestEpRet", "Eval_AverageReturn", "evaluation/return_mean", "test/success_rate",
    ],
    "discriminator_loss": ["loss_D", "errD", "train/disc_loss", "loss/d/total", "D_real_loss"],
    "generator_loss": ["Generator_loss", "errG", "G_loss", "loss_G_GAN"],
    "grad_norm": [
        "gnorm", "grad-norm", "grad_2.0_norm_total", "train/gradnorm", "pre_clip_grad_norm",
        "total_norm", "learner_stats/grad_gnorm",
    ],
    "kl_ref": ["kl/divergence", "info/kl"],
    "kl_old": [
        "kl_approx", "loss/approximate_kullback-leibler",
        "info/learner/default_policy/learner_stats/kl",
    ],
    "entropy": ["loss/entropy_loss", "Loss/entropy", "Policy/Entropy"],
    "learning_rate": ["Loss/learning_rate", "info/last_lr", "lr/pg0", "Policy/Learning Rate"],
    "accuracy": ["acc/train", "top1", "top-1", "Prec@1", "sparse_categorical_accuracy"],
    "eval_accuracy": ["val_accuracy", "val_top1", "test_acc"],
    "completion_length": ["generation/length", "Avg Response Len"],
}  # fmt: skip

OTHER_QUANTITIES = [
    "tools/count", "tool_rate", "error_rate", "dropout_rate", "staleness_threshold",
    "rollout/staleness_max", "val/tool_error_rate", "tool_success_rate", "format_success_rate",
    "EpRewStd", "StdEpRet", "MaxEpRet", "best_reward", "best_val_loss", "target_kl", "loss_scale",
    "loss_weight", "entropy_coeff", "grad_norm_clipped", "value_loss_clip", "reward_threshold",
    "loss/clip_factor", "clip_grad_norm", "max_val_acc", "top5", "reward_ratio", "kl_penalty",
]  # fmt: skip

COMPONENTS_AND_BONUSES = [
    "format_reward", "reward_format", "rewards/format", "Episode_Reward/track_lin_vel",
    "Episode/rew_tracking_lin_vel", "mean_int_reward", "reward_1", "bleu_score", "f1_score",
    "total_cost", "critic/returns/mean", "ppo/returns/mean", "aux_loss", "router_z_loss",
    "losses/alpha_loss", "loss_D_real_acc", "vae/kld_to_prior", "attention_entropy",
    "losses/q_values", "critic/lr(1e-4)", "grad_norm/encoder.layers.0", "val/box_loss",
    "loss/avg_raw_advantages", "loss/avg_final_rewards", "losses/qf1_values", "act_values",
    "generation/log_prob", "train/acc_3", "update_norm", "param_norm", "1", "total",
]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "name"), [(key, name) for name, keys in NAMED.items() for key in keys]
)
def test_words_name_a_signal(key, name):
    inferred = infer_signal(key)

    assert inferred is not None
    assert inferred.name == name


@pytest.mark.parametrize("key", OTHER_QUANTITIES + COMPONENTS_AND_BONUSES)
def test_spreads_limits_and_components_name_none(key):
    assert infer_signal(key) is None


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("loss_total", "average_loss"),
        ("average_loss", "nll_loss"),
        ("nll_loss", "cls_loss"),
        ("ppl", "cls_loss"),
        ("reward_mean_100", "ep_reward"),
        ("ep_reward", "ep_return"),
        ("ep_return", "score"),
    ],
)
def test_totals_and_means_are_better_names(better, worse):
    first, second = infer_signal(better), infer_signal(worse)

    assert first is not None
    assert second is not None
    assert first.rank < second.rank


def test_a_unit_in_the_key_is_converted():
    inferred = infer_signal("actor/lr(1e-4)")

    assert inferred is not None
    assert (inferred.name, inferred.factor) == ("learning_rate", pytest.approx(1e-4))


@pytest.mark.parametrize(
    ("key", "name"),
    [("ploss_0", "loss"), ("Positive Score", "reward"), ("val/box_loss", "eval_loss"),
     ("KLDivergenceToPrior", "kl_ref"), ("loss_std", ""), ("throughput", "")],
)  # fmt: skip
def test_the_nearest_signal_is_named_for_a_person(key, name):
    assert nearest_signal(key) == name
