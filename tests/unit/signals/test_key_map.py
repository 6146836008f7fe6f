"""The meaning of keys that depends on the framework or algorithm."""

from __future__ import annotations

from math import isnan, nan

import pytest

from sentinel.signals.key_map import KeyMapping, detect_framework, select_key_map


def mapping_of(key, framework="", algorithm="", version=""):
    metadata = {"framework": framework, "algorithm": algorithm, "framework_version": version}
    return select_key_map(metadata).lookup(key)


@pytest.mark.parametrize("algorithm", ["AsyncGRPOConfig", "async_grpo", "AsyncGRPOTrainer"])
@pytest.mark.parametrize("framework", ["trl", "TRL", "transformers", ""])
def test_the_kl_of_async_grpo_is_the_mismatch(framework, algorithm):
    assert mapping_of("train/kl", framework, algorithm).name == "kl_mismatch"


def test_the_kl_of_others_is_the_distance_to_the_reference():
    assert mapping_of("kl", "trl", "GRPOConfig").name == "kl_ref"
    assert select_key_map({}).lookup("kl").name == "kl_ref"


def test_accuracy_is_that_of_preferences_only_for_reward_models():
    assert mapping_of("accuracy", "trl", "RewardConfig").name == "preference_accuracy"
    assert mapping_of("margin", "trl", "RewardConfig").name == "reward_margin"
    assert mapping_of("accuracy", "trl", "SFTConfig").name == "accuracy"
    assert mapping_of("acc", "openrlhf", "dpo").name == "preference_accuracy"


def test_the_scores_of_a_reward_model_in_training_are_no_reward():
    """Scores may shift freely; the loss shows how the model learns."""
    assert mapping_of("mean_reward", "trl", "RewardConfig").name == "score_mean"
    assert mapping_of("mean_reward").name == "reward"
    detected = detect_framework(
        ["loss", "min_reward", "mean_reward", "max_reward", "accuracy", "margin"]
    )
    assert detected == {"framework": "trl", "algorithm": "reward"}


def test_a_gradient_norm_of_zero_is_missing_for_some_frameworks():
    assert mapping_of("actor_grad_norm").convert(0.0) is None
    assert mapping_of("grad_norm", "openrlhf").convert(0.0) is None
    assert mapping_of("grad_norm", "trl").convert(0.0) == 0.0
    assert mapping_of("actor_grad_norm").convert(0.5) == 0.5
    assert isnan(mapping_of("actor_grad_norm").convert(nan))


def test_a_norm_of_the_actor_alone_names_no_framework():
    assert detect_framework(["actor_grad_norm", "model_loss"]) == {}
    found = detect_framework(["actor_grad_norm", "response_length"])
    assert found == {"framework": "openrlhf", "algorithm": "ppo"}


def test_orpo_differs_from_dpo_by_its_odds_ratio():
    keys = ["rewards/chosen", "rewards/margins"]

    assert detect_framework(keys)["algorithm"] == "dpo"
    assert detect_framework([*keys, "log_odds_ratio"])["algorithm"] == "orpo"


def test_values_are_converted_to_the_unit_of_the_signal():
    assert mapping_of("lr(1e-3)").convert(0.5) == 5e-4
    assert mapping_of("train/total_tokens(B)").convert(2.0) == 2e9
    assert mapping_of("entropy_loss", "stable_baselines3") == KeyMapping("entropy", -1.0)
    assert mapping_of("mfu", "nanogpt").convert(50.0) == 0.5


def test_the_log_probability_of_slime_estimates_the_entropy():
    assert mapping_of("rollout/log_probs") == KeyMapping("entropy", -1.0)
    assert mapping_of("train/train_rollout_logprob_abs_diff").name == "kl_mismatch"


def test_an_error_is_that_of_a_rollout_only_in_prime_rl():
    assert mapping_of("error/mean", "prime-rl").name == "rollout_error_fraction"
    assert mapping_of("error/mean").name == "error/mean"


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("tools/failure_frequency", "tool_error_fraction"),
        ("num_turns/mean", "turns_per_episode"),
        ("training/off_policy/trajectory_staleness/mean", "rollout_staleness"),
        ("off_policy_level/all/max", "rollout_staleness_max"),
        ("train/load balancing loss", "load_balancing_loss"),
        ("train/router Z loss", "router_z_loss"),
        ("rollout/moe/max_vio/layer_3", "expert_load_violation/layer_3"),
        ("train/block 03/load imbalance", "expert_load_imbalance/block 03"),
    ],
)
def test_keys_of_tools_rollouts_and_experts(key, name):
    assert mapping_of(key).name == name


def test_the_auxiliary_loss_is_that_of_the_router_in_trl():
    assert mapping_of("aux_loss", "trl", "grpo").name == "load_balancing_loss"
    assert mapping_of("aux_loss").name == "aux_loss"


def test_generic_frameworks_select_no_key_map():
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


def test_a_very_long_version_is_accepted():
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
        ("batch/solve_none error/mean reward/mean", "prime-rl", ""),
    ],
)
def test_the_framework_is_detected_from_keys(keys, framework, algorithm):
    metadata = detect_framework(keys.split())

    assert (metadata["framework"], metadata.get("algorithm", "")) == (framework, algorithm)


def test_ordinary_keys_detect_no_framework():
    assert detect_framework(["loss", "grad_norm", "learning_rate", "kl", "reward"]) == {}
