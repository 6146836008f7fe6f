"""Names of settings in the framework of the run, for remedies.

With the name a reader of a remedy knows which line to edit. Framework and algorithm come from the
run's metadata.
"""

from __future__ import annotations

from collections.abc import Mapping

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"

SETTING_NAMES: Mapping[str, Mapping[str, str]] = {
    "learning rate": {
        "transformers": "learning_rate",
        "verl": f"{_ACTOR}.optim.lr",
        "deepspeed": "optimizer.params.lr",
    },
    "warm-up": {"transformers": "warmup_steps", "verl": f"{_ACTOR}.optim.lr_warmup_steps"},
    "gradient clipping": {
        "transformers": "max_grad_norm",
        "verl": f"{_ACTOR}.grad_clip",
        "deepspeed": "gradient_clipping",
        "lightning": "gradient_clip_val",
    },
    "KL coefficient": {
        "trl": "beta",
        "trl/ppo": "kl_coef",
        "verl": f"{_ACTOR}.kl_loss_coef",
    },
    "KL coefficient in the reward": {"verl": "algorithm.kl_ctrl.kl_coef"},
    "adaptive KL control": {"verl": "algorithm.kl_ctrl.type=adaptive"},
    "KL loss term": {"verl": f"{_ACTOR}.use_kl_loss"},
    "number of updates per batch": {
        "trl": "num_iterations",
        "trl/ppo": "num_ppo_epochs",
        "verl": f"{_ACTOR}.ppo_epochs",
    },
    "clip range": {
        "trl": "epsilon",
        "trl/ppo": "cliprange",
        "verl": f"{_ACTOR}.clip_ratio",
    },
    "upper clip range": {"trl": "epsilon_high", "verl": f"{_ACTOR}.clip_ratio_high"},
    "entropy bonus": {"trl/grpo": "entropy_coef", "verl": f"{_ACTOR}.entropy_coeff"},
    "value coefficient": {"trl/ppo": "vf_coef"},
    "sampling temperature": {"trl": "temperature", "verl": f"{_ROLLOUT}.temperature"},
    "number of completions per prompt": {"trl": "num_generations", "verl": f"{_ROLLOUT}.n"},
    "filter for zero-variance groups": {"verl": "algorithm.filter_groups.enable"},
    "importance-sampling correction": {
        "trl/grpo": "vllm_importance_sampling_correction",
        "verl": "algorithm.rollout_correction",
    },
    "mask for truncated completions": {"trl": "mask_truncated_completions"},
    "value model learning rate": {"verl": "critic.optim.lr"},
    "value model warm-up": {"verl": "trainer.critic_warmup"},
    "maximum completion length": {
        "trl": "max_completion_length",
        "trl/ppo": "response_length",
        "verl": "data.max_response_length",
    },
    "number of epochs": {
        "transformers": "num_train_epochs",
        "verl": "trainer.total_epochs",
        "lightning": "max_epochs",
    },
    "batch size": {
        "transformers": "per_device_train_batch_size",
        "verl": "data.train_batch_size",
        "deepspeed": "train_micro_batch_size_per_gpu",
    },
    "save interval": {"transformers": "save_steps", "verl": "trainer.save_freq"},
    "checkpoint limit": {
        "transformers": "save_total_limit",
        "verl": "trainer.max_actor_ckpt_to_keep",
    },
    "bfloat16 precision": {
        "transformers": "bf16",
        "deepspeed": "bf16.enabled",
        "lightning": "precision",
    },
    "number of data loader workers": {
        "transformers": "dataloader_num_workers",
        "verl": "data.dataloader_num_workers",
    },
    "maximum number of steps": {
        "transformers": "max_steps",
        "verl": "trainer.total_training_steps",
        "lightning": "max_steps",
    },
    "learning-rate schedule": {"transformers": "lr_scheduler_type"},
    "loading of the best checkpoint": {"transformers": "load_best_model_at_end"},
    "weights-only saving": {
        "transformers": "save_only_model",
        "lightning": "save_weights_only",
    },
    "checkpoint to resume from": {
        "transformers": "resume_from_checkpoint",
        "verl": "trainer.resume_mode",
        "lightning": "ckpt_path",
    },
    "output directory": {
        "transformers": "output_dir",
        "verl": "trainer.default_local_dir",
        "lightning": "default_root_dir",
    },
    "loss aggregation": {"trl/grpo": "loss_type", "verl": f"{_ACTOR}.loss_agg_mode"},
    "completion-only loss": {"trl/sft": "completion_only_loss"},
    "maximum sequence length": {"trl/sft": "max_length"},
    "weight decay": {"transformers": "weight_decay", "verl": f"{_ACTOR}.optim.weight_decay"},
}
"""Name of each setting by framework, or by framework/algorithm where that differs. TRL's trainers
accept the settings of transformers as well."""

_BASE_FRAMEWORKS = {"trl": "transformers"}


def with_setting_names(text: str, run_metadata: Mapping[str, str | float]) -> str:
    """The text with each `{setting}` replaced by `describe_setting`.

    >>> with_setting_names("Halve {learning rate}.", {"framework": "trl"})
    'Halve the learning rate (`learning_rate`).'
    """
    for setting in SETTING_NAMES:
        if f"{{{setting}}}" in text:
            text = text.replace(f"{{{setting}}}", describe_setting(setting, run_metadata))
    return text


def describe_setting(setting: str, run_metadata: Mapping[str, str | float]) -> str:
    """The setting as text for people: its common name, and the framework's name for it.

    >>> describe_setting("KL coefficient", {"framework": "trl", "algorithm": "grpo"})
    'the KL coefficient (`beta`)'
    >>> describe_setting("KL coefficient", {})
    'the KL coefficient'
    """
    names = SETTING_NAMES[setting]
    framework = str(run_metadata.get("framework", "")).lower()
    algorithm = str(run_metadata.get("algorithm", "")).lower()
    keys = (f"{framework}/{algorithm}", framework, _BASE_FRAMEWORKS.get(framework, ""))
    name = next((names[key] for key in keys if key in names), None)
    return f"the {setting}" if name is None else f"the {setting} (`{name}`)"
