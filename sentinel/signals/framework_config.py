"""The settings in a framework's configuration that are recorded as run metadata.

The client reads them from the trainer's objects, a log reader from what a tracker stored; both give
the same names and values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

from sentinel.signals.loss_kind import CLASS_COUNT_KEYS

TRAINER_SETTINGS = (
    "learning_rate", "lr_scheduler_type", "warmup_steps", "warmup_ratio", "optim", "weight_decay",
    "max_grad_norm", "per_device_train_batch_size", "gradient_accumulation_steps",
    "num_train_epochs", "seed", "bf16", "fp16", "gradient_checkpointing", "logging_steps",
    "logging_nan_inf_filter", "save_strategy", "save_total_limit", "load_best_model_at_end",
    "eval_strategy", "packing", "max_length", "beta",
    "loss_type", "label_smoothing", "desirable_weight", "undesirable_weight", "num_generations",
    "num_iterations", "steps_per_generation", "max_completion_length", "temperature", "top_p",
    "epsilon", "epsilon_high", "scale_rewards", "importance_sampling_level", "entropy_coef",
    "mask_truncated_completions", "use_vllm", "vllm_mode", "kl_estimator", "kl_coef", "kl_penalty",
    "cliprange", "vf_coef", "num_ppo_epochs", "num_mini_batches", *CLASS_COUNT_KEYS,
)  # fmt: skip
"""Settings read from the arguments of transformers and TRL, by their own names."""

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."

VERL_SETTING_PATHS = {
    "algorithm": "algorithm.adv_estimator",
    "learning_rate": f"{_ACTOR}optim.lr",
    "critic_learning_rate": "critic.optim.lr",
    "num_generations": f"{_ROLLOUT}n",
    "max_grad_norm": f"{_ACTOR}grad_clip",
    "train_batch_size": "data.train_batch_size",
    "max_prompt_length": "data.max_prompt_length",
    "max_completion_length": "data.max_response_length",
    "output_dir": "trainer.default_local_dir",
    "rollout_engine": f"{_ROLLOUT}name",
    **{
        name: f"{_ACTOR}{name}"
        for name in (
            "use_kl_loss", "kl_loss_coef", "kl_loss_type", "loss_agg_mode", "clip_ratio",
            "clip_ratio_low", "clip_ratio_high", "entropy_coeff", "ppo_mini_batch_size",
            "ppo_epochs", "strategy",
        )
    },
    **{name: f"{_ROLLOUT}{name}" for name in ("temperature", "top_p")},
    **{f"kl_ctrl.{name}": f"algorithm.kl_ctrl.{name}" for name in ("type", "kl_coef")},
    **{
        name: f"algorithm.{name}"
        for name in ("gamma", "lam", "use_kl_in_reward", "kl_penalty", "norm_adv_by_std_in_grpo")
    },
    **{
        name: f"trainer.{name}"
        for name in ("total_epochs", "save_freq", "test_freq", "nnodes", "n_gpus_per_node", "seed")
    },
}  # fmt: skip
"""Settings read from verl's configuration: name, and path in the configuration."""

TRL_ALGORITHM_SIGNATURES = (
    ("gkd", {"lmbda"}),
    ("rloo", {"reward_clip_range"}),
    ("rloo", {"rloo_k"}),
    ("grpo", {"num_generations", "beta"}),
    ("kto", {"desirable_weight"}),
    ("dpo", {"precompute_ref_log_probs"}),
    ("reward", {"center_rewards_coefficient"}),
    ("ppo", {"vf_coef", "num_ppo_epochs"}),
    ("sft", {"packing", "dataset_text_field"}),
)
"""Algorithms of TRL by settings that only their arguments have; the first match counts."""

_TRAINER_SIGNATURE = {"per_device_train_batch_size", "lr_scheduler_type"}
_VERL_SIGNATURE = {"actor_rollout_ref", "trainer"}

MAX_SETTING_CHARS = 200
"""Characters stored of a setting."""

ConfigMetadata = dict[str, str | float]


def parse_framework_config(config: Mapping[str, Any]) -> ConfigMetadata:
    """Run metadata from a configuration stored by a tracker.

    Frameworks are recognised by settings that only they have. `max_steps` and `save_steps` are read
    for known frameworks only: others may count something else.
    """
    if config.keys() >= _VERL_SIGNATURE:
        return {**extract_verl_settings(config), "framework": "verl"}
    is_trainer = config.keys() >= _TRAINER_SIGNATURE
    algorithm = detect_trl_algorithm(config) if is_trainer else ""
    settings = extract_trainer_settings(config.get, algorithm)
    if is_trainer:
        settings["framework"] = "trl" if algorithm else "transformers"
        settings |= _step_settings(config)
    elif (rate := to_setting(config.get("lr"))) is not None:
        settings.setdefault("learning_rate", rate)
    peft_type = adapter_type(config.get("peft_config")) or config.get("finetuning_type")
    if isinstance(peft_type, str) and "lora" in peft_type.lower():
        settings["peft_type"] = peft_type.upper()
    for name in ("algorithm", "framework", "framework_version"):
        if name not in settings and isinstance(text := to_setting(config.get(name)), str):
            settings[name] = text
    model = config.get("model_name_or_path") or config.get("_name_or_path") or config.get("model")
    if isinstance(model, str) and model:
        settings["model"] = short_model_name(model)
    return settings


def adapter_type(peft_config: Any) -> str | None:
    """The kind of adapters in the configurations of PEFT by adapter name; None if there are none.

    >>> adapter_type({"default": {"peft_type": "LORA", "r": 16}})
    'LORA'
    """
    for config in peft_config.values() if isinstance(peft_config, Mapping) else ():
        kind = config.get("peft_type") if isinstance(config, Mapping) else None
        kind = kind or getattr(config, "peft_type", None)
        if kind is not None:
            return str(getattr(kind, "value", kind))[:MAX_SETTING_CHARS]
    return None


def detect_trl_algorithm(config: Mapping[str, Any]) -> str:
    """The TRL algorithm that has these arguments; empty if they are not TRL's.

    >>> detect_trl_algorithm({"num_generations": 8, "beta": 0.04, "scale_rewards": "group"})
    'grpo'
    """
    return next((name for name, own in TRL_ALGORITHM_SIGNATURES if config.keys() >= own), "")


def extract_trainer_settings(get_argument: Callable[[str], Any], algorithm: str) -> ConfigMetadata:
    """Settings of the arguments of a `transformers.Trainer`.

    `get_argument` returns an argument, or None if there is none.
    """
    settings = {name: to_setting(get_argument(name)) for name in TRAINER_SETTINGS}
    corrected = get_argument("use_bias_correction_kl")
    if algorithm == "grpo" and corrected is not None:
        settings["kl_estimator"] = "k3xratio" if corrected else "k3"
    if algorithm:
        settings["algorithm"] = algorithm
    return {name: value for name, value in settings.items() if value is not None}


def extract_verl_settings(config: Any) -> ConfigMetadata:
    """Settings of verl's configuration, which may be None or lack any of them."""
    raw = {name: _get_nested(config, path) for name, path in VERL_SETTING_PATHS.items()}
    model = _get_nested(config, "actor_rollout_ref.model.path") or _get_nested(config, "model.path")
    if isinstance(model, str):
        raw["model"] = PurePath(model).name
    for name, key in (("save_steps", "save_freq"), ("max_steps", "total_training_steps")):
        number = _get_nested(config, f"trainer.{key}")
        # -1 means never; None means as many as the data allow.
        if type(number) is int and number > 0:
            raw[name] = number
    beta = _kl_coefficient(raw)
    if beta is not None:
        raw["beta"] = beta
    scalars = {n: value for n, value in raw.items() if not isinstance(value, list | tuple)}
    settings = {name: to_setting(value) for name, value in scalars.items()}
    return {name: value for name, value in settings.items() if value is not None}


def to_setting(value: Any) -> str | float | None:
    """The value as a number or short text; None if it is neither."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value)) if all(isinstance(v, str) for v in value) else None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return value
    return str(value)[:MAX_SETTING_CHARS] if isinstance(value, str) else None


def _step_settings(config: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """`max_steps` and `save_steps` of a trainer, if it counts both in steps."""
    max_steps, save_steps = config.get("max_steps"), config.get("save_steps")
    if type(max_steps) is int and max_steps > 0:
        yield "max_steps", max_steps
    if type(save_steps) is int and save_steps > 0 and config.get("save_strategy") == "steps":
        yield "save_steps", save_steps


def short_model_name(model: str) -> str:
    """The last part of a folder's path; a name on a model hub, `owner/model`, is unchanged."""
    path = PurePath(model)
    is_hub_name = len(path.parts) <= 2 and path.parts[:1] not in {("/",), ("~",)}
    return (str(path) if is_hub_name else path.name or model)[:MAX_SETTING_CHARS]


def _kl_coefficient(raw: Mapping[str, Any]) -> Any:
    """Coefficient of the KL to the reference, in loss or reward; 0 if it is in neither."""
    if raw["use_kl_loss"] is True:
        return raw["kl_loss_coef"]
    if raw["use_kl_in_reward"] is True:
        return raw["kl_ctrl.kl_coef"]
    return 0.0 if raw["use_kl_loss"] is False else None


def _get_nested(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None
    return config
