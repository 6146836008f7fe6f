"""Configured: the settings in a framework's configuration that are worth telling, by one name each.

The hook finds them in the trainer's own objects, a log in what a tracker kept of them; what is told
of a run is the same from either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

TRAINER_SETTINGS = (
    "learning_rate", "lr_scheduler_type", "warmup_steps", "warmup_ratio", "optim", "weight_decay",
    "max_grad_norm", "per_device_train_batch_size", "gradient_accumulation_steps",
    "num_train_epochs", "seed", "bf16", "fp16", "gradient_checkpointing", "logging_steps",
    "logging_nan_inf_filter", "save_strategy", "eval_strategy", "packing", "max_length", "beta",
    "loss_type", "label_smoothing", "desirable_weight", "undesirable_weight", "num_generations",
    "num_iterations", "steps_per_generation", "max_completion_length", "temperature", "top_p",
    "epsilon", "epsilon_high", "scale_rewards", "importance_sampling_level", "entropy_coef",
    "mask_truncated_completions", "use_vllm", "vllm_mode", "kl_estimator", "kl_coef", "kl_penalty",
    "cliprange", "vf_coef", "num_ppo_epochs", "num_mini_batches",
)  # fmt: skip
"""Settings of transformers' and TRL's arguments, by their own names; no others are looked at."""

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
"""Name of a fact, and where in verl's configuration it stands; nothing else there is looked at."""

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
"""Algorithms of TRL by settings that only their arguments have, in the order to be asked."""

_TRAINER_SIGNATURE = {"per_device_train_batch_size", "lr_scheduler_type"}
_VERL_SIGNATURE = {"actor_rollout_ref", "trainer"}

MAX_SETTING_CHARS = 200
"""Characters of a setting."""

ConfigMetadata = dict[str, str | float]


def parse_framework_config(config: Mapping[str, Any]) -> ConfigMetadata:
    """What a configuration that a tracker kept says; of an unknown framework's, its settings alone.

    Frameworks are known by what only their configurations have. `max_steps` and `save_steps` are
    told of known frameworks only: others may count something else.
    """
    if config.keys() >= _VERL_SIGNATURE:
        return {**extract_verl_settings(config), "framework": "verl"}
    trainers = config.keys() >= _TRAINER_SIGNATURE
    algorithm = detect_trl_algorithm(config) if trainers else ""
    found = extract_trainer_settings(config.get, algorithm)
    if trainers:
        found["framework"] = "trl" if algorithm else "transformers"
        found |= _step_settings(config)
    elif (rate := to_setting(config.get("lr"))) is not None:
        found.setdefault("learning_rate", rate)
    for name in ("algorithm", "framework", "framework_version"):
        if name not in found and isinstance(said := to_setting(config.get(name)), str):
            found[name] = said
    model = config.get("model_name_or_path") or config.get("_name_or_path") or config.get("model")
    if isinstance(model, str) and model:
        found["model"] = _short_model_name(model)
    return found


def detect_trl_algorithm(config: Mapping[str, Any]) -> str:
    """The algorithm whose arguments in TRL these are; empty if they are not TRL's.

    >>> algorithm_of({"num_generations": 8, "beta": 0.04, "scale_rewards": "group"})
    'grpo'
    """
    return next((name for name, own in TRL_ALGORITHM_SIGNATURES if config.keys() >= own), "")


def extract_trainer_settings(get_argument: Callable[[str], Any], algorithm: str) -> ConfigMetadata:
    """Settings of the arguments of a `transformers.Trainer`; `look` gives one, or None."""
    found = {name: to_setting(get_argument(name)) for name in TRAINER_SETTINGS}
    corrected = get_argument("use_bias_correction_kl")
    if algorithm == "grpo" and corrected is not None:
        found["kl_estimator"] = "k3xratio" if corrected else "k3"
    if algorithm:
        found["algorithm"] = algorithm
    return {name: said for name, said in found.items() if said is not None}


def extract_verl_settings(config: Any) -> ConfigMetadata:
    """Settings of verl's configuration, which may be None, or lack any of them."""
    found = {name: _get_nested(config, place) for name, place in VERL_SETTING_PATHS.items()}
    model = _get_nested(config, "actor_rollout_ref.model.path") or _get_nested(config, "model.path")
    if isinstance(model, str):
        found["model"] = PurePath(model).name
    for name, place in (("save_steps", "save_freq"), ("max_steps", "total_training_steps")):
        number = _get_nested(config, f"trainer.{place}")
        # -1 stands for never, and none for as many as the data last.
        if type(number) is int and number > 0:
            found[name] = number
    beta = _kl_coefficient(found)
    if beta is not None:
        found["beta"] = beta
    plain = ((name, value) for name, value in found.items() if not isinstance(value, list | tuple))
    return {name: said for name, value in plain if (said := to_setting(value)) is not None}


def to_setting(value: Any) -> str | float | None:
    """A number or a short text; None for what is neither."""
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
    """How far a trainer goes and how often it saves, where its arguments say so by steps."""
    most, each = config.get("max_steps"), config.get("save_steps")
    if type(most) is int and most > 0:
        yield "max_steps", most
    if type(each) is int and each > 0 and config.get("save_strategy") == "steps":
        yield "save_steps", each


def _short_model_name(model: str) -> str:
    """A folder's own name; the name of a model as a hub knows it, `owner/model`, stays whole."""
    path = PurePath(model)
    whole = len(path.parts) <= 2 and path.parts[:1] not in {("/",), ("~",)}
    return (str(path) if whole else path.name or model)[:MAX_SETTING_CHARS]


def _kl_coefficient(found: Mapping[str, Any]) -> Any:
    """The coefficient of the KL to the reference, wherever it enters; 0 where it does nowhere."""
    if found["use_kl_loss"] is True:
        return found["kl_loss_coef"]
    if found["use_kl_in_reward"] is True:
        return found["kl_ctrl.kl_coef"]
    return 0.0 if found["use_kl_loss"] is False else None


def _get_nested(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None
    return config
