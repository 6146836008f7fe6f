"""Signals of a policy: divergence, objective, and completions."""

from __future__ import annotations

from sentinel.signals.signal import CombineRule, Signal

_MEAN, _MAX, _MIN, _SAME = CombineRule.MEAN, CombineRule.MAX, CombineRule.MIN, CombineRule.SAME

DIVERGENCE = (
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
        "Divergence of the policy from the one that sampled: the step size.",
        (
            "approx_kl",
            "approxkl",
            "policy/approxkl_avg",
            "actor/ppo_kl",
            "ppo_kl",
            "losses/approx_kl",
            "ppo/policy/approxkl",
        ),
        family="policy_step_kl",
    ),
    Signal(
        "kl_mismatch",
        "nats",
        _MEAN,
        "Divergence between the engine that sampled and the trainer's own copy of that policy.",
        (
            "rollout_corr/kl",
            "vllm_kl",
            "rollout_corr/k3_kl",
            "mismatch/mismatch_kl",
            "mismatch/mismatch_k3_kl",
            "sampling/sampling_logp_difference/mean",
        ),
        family="policy_mismatch_kl",
    ),
    Signal(
        "kl_coef",
        "",
        _SAME,
        "Weight of the KL penalty.",
        (
            "kl_coeff",
            "actor/kl_coef",
            "actor/reward_kl_penalty_coeff",
            "critic/kl_coeff",
            "objective/kl_coef",
        ),
        family="kl_coefficient",
    ),
)

OBJECTIVE = (
    Signal(
        "policy_loss",
        "",
        _MEAN,
        "The policy's part of the loss.",
        (
            "actor/pg_loss",
            "pg_loss",
            "actor_loss",
            "loss/policy_avg",
            "losses/policy_loss",
            "policy_gradient_loss",
            "ppo/loss/policy",
        ),
    ),
    Signal(
        "value_loss",
        "",
        _MEAN,
        "The value model's part of the loss.",
        (
            "critic/vf_loss",
            "vf_loss",
            "critic_loss",
            "loss/value_avg",
            "losses/value_loss",
            "ppo/loss/value",
        ),
    ),
    Signal(
        "explained_variance",
        "",
        _MEAN,
        "Share of the variance of returns that the value model explains; below 0 it is harmful.",
        (
            "critic/vf_explained_var",
            "losses/explained_variance",
            "ppo/val/var_explained",
        ),
    ),
    Signal(
        "entropy",
        "nats",
        _MEAN,
        "Mean entropy of the policy's next-token distribution.",
        (
            "policy/entropy_avg",
            "actor/entropy",
            "actor/entropy_loss",
            "entropy_loss",
            "losses/entropy",
        ),
    ),
    Signal(
        "entropy_coef",
        "",
        _SAME,
        "Weight of the entropy bonus.",
        ("ent_coef", "actor/entropy_coeff"),
        family="entropy_coefficient",
    ),
    Signal(
        "clip_fraction",
        "ratio",
        _MEAN,
        "Share of tokens whose probability ratio was clipped.",
        (
            "clip_ratio/region_mean",
            "clip_ratio",
            "cispo_clip_ratio",
            "actor/pg_clipfrac",
            "policy/clipfrac_avg",
            "ppo_clip_ratio",
            "losses/clipfrac",
            "ppo/policy/clipfrac",
        ),
    ),
    Signal(
        "value_clip_fraction",
        "ratio",
        _MEAN,
        "Share of value predictions that were clipped.",
        ("critic/vf_clipfrac", "val/clipfrac_avg", "ppo/val/clipfrac"),
    ),
    Signal(
        "importance_ratio_min",
        "",
        _MIN,
        "Lowest ratio of the policy's probability to that of the one that sampled.",
        ("sampling/importance_sampling_ratio/min", "rollout_corr/rollout_is_min"),
    ),
    Signal(
        "importance_ratio_mean",
        "",
        _MEAN,
        "Mean ratio of the policy's probability to that of the one that sampled.",
        (
            "sampling/importance_sampling_ratio/mean",
            "rollout_corr/rollout_is_mean",
            "val/ratio",
        ),
    ),
    Signal(
        "importance_ratio_max",
        "",
        _MAX,
        "Highest ratio of the policy's probability to that of the one that sampled.",
        ("sampling/importance_sampling_ratio/max", "rollout_corr/rollout_is_max"),
    ),
)

COMPLETIONS = (
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
        "completion_length_max",
        "tokens",
        _MAX,
        "Length of the longest sampled completion.",
        ("completions/max_length", "response_length/max"),
    ),
    Signal(
        "truncated_fraction",
        "ratio",
        _MEAN,
        "Share of completions that were cut off at the length limit.",
        (
            "completions/clipped_ratio",
            "response_length/clip_ratio",
            "rollout/truncated_rate",
            "response_clip_ratio",
        ),
        family="completions_truncated",
    ),
    Signal(
        "sample_repetition",
        "ratio",
        _MEAN,
        "Share of four-word phrases in the sampled texts that are repetitions.",
    ),
    Signal(
        "sample_longest_run",
        "",
        _MAX,
        "Length of the longest run of one word in any sampled text.",
    ),
    Signal("sample_empty", "ratio", _MEAN, "Share of sampled texts that are blank."),
    Signal(
        "sample_truncated", "ratio", _MEAN, "Share of sampled texts that ended at the length limit."
    ),
    Signal(
        "sample_distinct_1", "ratio", _MEAN, "Distinct words among all words of the sampled texts."
    ),
    Signal(
        "sample_distinct_2",
        "ratio",
        _MEAN,
        "Distinct pairs of words among all pairs of the sampled texts.",
    ),
    Signal("sample_length", "characters", _MEAN, "Mean length of the sampled texts."),
)
