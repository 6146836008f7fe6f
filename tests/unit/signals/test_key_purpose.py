"""Keys without a signal are listed with what they are of."""

from __future__ import annotations

import pytest

from sentinel.signals.key_purpose import WATCHED, key_purpose

KEYS = {
    "position in the run": ["step", "_timestamp", "training_iteration", "time/total_timesteps"],
    "counter": [
        "num_episodes", "train/n_updates", "total_flos", "n_groups",
        "num_env_steps_sampled_lifetime", "replay_bank_size", "env/all/total_turns",
        "consumed samples",
        "roi_head/num_fg_samples",
    ],
    "timing": [
        "train_runtime", "timing_s/update_actor", "dt_ms", "eta_seconds", "time/step_train",
        "elapsed time per iteration (ms)", "train/time(s)", "timing/train/total_step_time",
    ],
    "speed": [
        "train_steps_per_second", "tok/sec", "fps/policy", "It/sec", "TFLOPs", "charts/SPS",
        "train_speed(iter/s)", "performance/step_inference_rl_update_fps", "system/tps",
    ],
    "hardware": ["memory(GiB)", "Peak mem", "peak_memory_alloc", "perf/max_memory_allocated_gb"],
    "configuration": [
        "train/clip_range", "lr/pg1", "critic_lr", "charts/epsilon", "pg_weight", "target_kl",
        "rollout/exploration_rate", "global batch size", "Coefficient / Entropy coefficient",
    ],
    "spread or extreme of a quantity": [
        "critic/score/max", "rewards/format/std", "response_length/min", "best_metric",
        "val-aux/aime/reward/best@2/mean", "Reward / Total reward (max)",
    ],
    WATCHED: [
        "loss_perceptual", "metrics/mAP50(B)", "rewards/format/mean", "logps/chosen", "elo",
        "rollout/ep_len_mean", "losses/qf1_values", "FID", "prompt_length/mean", "avg_steps",
        "rewards/news_alpha_reward/mean", "train/rewards/total_reward", "clip_ratio/low_mean",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("purpose", "key"), [(purpose, key) for purpose, keys in KEYS.items() for key in keys]
)
def test_the_words_of_a_key_state_its_purpose(purpose, key):
    assert key_purpose(key) == purpose
