"""Dialect: what a key means where its framework or algorithm decides."""

from __future__ import annotations

from math import isnan, nan

import pytest

from sentinel.signals.key_map import KeyMapping, detect_framework, select_key_map


def word(key, framework="", algorithm="", version=""):
    facts = {"framework": framework, "algorithm": algorithm, "framework_version": version}
    return select_key_map(facts).lookup(key)


@pytest.mark.parametrize("algorithm", ["AsyncGRPOConfig", "async_grpo", "AsyncGRPOTrainer"])
@pytest.mark.parametrize("framework", ["trl", "TRL", "transformers", ""])
def test_the_kl_of_async_grpo_is_the_mismatch(framework, algorithm):
    assert word("train/kl", framework, algorithm).name == "kl_mismatch"


def test_the_kl_of_others_is_the_distance_to_the_reference():
    assert word("kl", "trl", "GRPOConfig").name == "kl_ref"
    assert select_key_map({}).lookup("kl").name == "kl_ref"


def test_accuracy_is_of_preferences_only_where_rewards_are_modelled():
    assert word("accuracy", "trl", "RewardConfig").name == "preference_accuracy"
    assert word("margin", "trl", "RewardConfig").name == "reward_margin"
    assert word("accuracy", "trl", "SFTConfig").name == "accuracy"
    assert word("acc", "openrlhf", "dpo").name == "preference_accuracy"


def test_the_scores_of_a_reward_model_are_nobody_s_reward():
    """It may shift them all as it likes, and its loss is what tells how it learns."""
    assert word("mean_reward", "trl", "RewardConfig").name == "score_mean"
    assert word("mean_reward").name == "reward"
    found = detect_framework(
        ["loss", "min_reward", "mean_reward", "max_reward", "accuracy", "margin"]
    )
    assert found == {"framework": "trl", "algorithm": "reward"}


def test_a_gradient_norm_of_zero_is_none_where_the_framework_means_that():
    assert word("actor_grad_norm").convert(0.0) is None
    assert word("grad_norm", "openrlhf").convert(0.0) is None
    assert word("grad_norm", "trl").convert(0.0) == 0.0
    assert word("actor_grad_norm").convert(0.5) == 0.5
    assert isnan(word("actor_grad_norm").convert(nan))


def test_values_come_in_our_units():
    assert word("lr(1e-3)").convert(0.5) == 5e-4
    assert word("train/total_tokens(B)").convert(2.0) == 2e9
    assert word("entropy_loss", "stable_baselines3") == KeyMapping("entropy", -1.0)
    assert word("mfu", "nanogpt").convert(50.0) == 0.5


def test_frameworks_that_carry_others_tell_nothing():
    assert select_key_map({"framework": "torch", "framework_version": "2.13.0"}) == select_key_map(
        {}
    )
    assert (
        select_key_map({"framework": "transformers", "algorithm": "DPOConfig"}).framework == "trl"
    )


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("1.16.0", (1, 16, 0)), ("0.9.1.post1", (0, 9, 1)), ("1.17.0.dev0", (1, 17, 0)), ("main", ())],
)
def test_a_version_is_its_leading_numbers(version, numbers):
    assert select_key_map({"framework": "trl", "framework_version": version}).version == numbers


def test_a_version_that_goes_on_for_ever_is_no_trouble():
    assert select_key_map({"framework": "trl", "framework_version": "9" * 5000}).version


@pytest.mark.parametrize(
    ("keys", "framework", "algorithm"),
    [
        ("actor/pg_loss critic/score/mean", "verl", ""),
        ("train/rollout/reward_mean", "openrlhf", "ppo"),
        ("train/completions/mean_length train/kl", "trl", ""),
        ("completion_length reward_std kl", "trl", "grpo"),
        ("objective/kl policy/approxkl_avg", "trl", "ppo"),
        ("objective/kl", "trl", ""),
        ("rewards/chosen rewards/margins kl", "trl", "kto"),
        ("rewards/chosen rewards/margins", "trl", "dpo"),
        ("train/policy_gradient_loss train/entropy_loss", "stable-baselines3", ""),
        ("losses/approx_kl", "cleanrl", ""),
        ("Train/Samples/lr", "deepspeed", ""),
    ],
)
def test_the_keys_of_a_log_give_its_framework_away(keys, framework, algorithm):
    facts = detect_framework(keys.split())

    assert (facts["framework"], facts.get("algorithm", "")) == (framework, algorithm)


def test_ordinary_keys_give_nothing_away():
    assert detect_framework(["loss", "grad_norm", "learning_rate", "kl", "reward"]) == {}
