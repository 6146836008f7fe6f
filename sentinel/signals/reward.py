"""Signals of reward and preference, from reward models, reward functions or preference pairs."""

from __future__ import annotations

from sentinel.signals.signal import CombineRule, Signal

REWARDS = (
    Signal(
        "reward",
        "",
        CombineRule.MEAN,
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
            "average_reward",
            "charts/episodic_return",
            "ppo/mean_scores",
        ),
    ),
    Signal(
        "reward_total",
        "",
        CombineRule.MEAN,
        "Mean reward after the KL penalty, which is what is optimised.",
        ("objective/rlhf_reward", "critic/rewards/mean"),
        family="reward_penalised",
    ),
    Signal(
        "reward_std",
        "",
        CombineRule.MEAN,
        "Spread of the reward within the batch.",
        ("reward/std", "rewards/std", "rollout/reward_std"),
    ),
    Signal(
        "frac_zero_std",
        "ratio",
        CombineRule.MEAN,
        "Share of groups whose completions all have the same reward, and so no advantage.",
        ("frac_reward_zero_std",),
        family="zero_std_groups",
    ),
    Signal(
        "advantage_mean",
        "",
        CombineRule.MEAN,
        "Mean advantage of the batch.",
        ("adv_mean", "advantages/mean", "advantages_mean", "critic/advantages/mean"),
    ),
    Signal(
        "advantage_std",
        "",
        CombineRule.MEAN,
        "Spread of the advantages within the batch.",
        ("adv_std", "advantages/std", "advantages_std", "critic/advantages/std"),
    ),
    Signal(
        "preference_accuracy",
        "ratio",
        CombineRule.MEAN,
        "Share of pairs whose chosen answer is rewarded above the rejected one.",
        ("rewards/accuracies", "reward_accuracy"),
    ),
    Signal(
        "reward_margin",
        "",
        CombineRule.MEAN,
        "Reward of the chosen answer minus that of the rejected one.",
        ("rewards/margins",),
    ),
    Signal(
        "reward_chosen",
        "",
        CombineRule.MEAN,
        "Mean reward of the chosen answers.",
        ("rewards/chosen", "chosen_reward"),
    ),
    Signal(
        "reward_rejected",
        "",
        CombineRule.MEAN,
        "Mean reward of the rejected answers.",
        ("rewards/rejected", "rejected_reward", "reject_reward"),
    ),
)
