"""Trainer facts: what the arguments of a `transformers.Trainer`, or one of TRL's, say of a run."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Any

SETTINGS = (
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
"""Settings worth telling, by their own names; nothing else of the arguments is looked at."""

LIBRARIES = ("torch", "transformers", "accelerate", "trl", "peft", "deepspeed", "vllm", "datasets")
_TEXT = 200
"""Characters of a setting."""

Facts = dict[str, str | float]


def run_facts(args: Any, state: Any, model: Any) -> Facts:
    """What is known when a trainer begins: framework, algorithm, model, settings and versions."""
    found = {name: _fact(getattr(args, name, None)) for name in SETTINGS}
    found |= {name: _version(name) for name in LIBRARIES}
    algorithm = _algorithm(args)
    framework = "trl" if algorithm else "transformers"
    found |= {
        "framework": framework,
        "framework_version": _version(framework),
        "algorithm": algorithm or None,
        "model": _model(model),
        "output_dir": str(Path(args.output_dir).absolute()),
    }
    if algorithm == "grpo" and hasattr(args, "use_bias_correction_kl"):
        found["kl_estimator"] = "k3xratio" if args.use_bias_correction_kl else "k3"
    if state.max_steps > 0:
        found["max_steps"] = state.max_steps
        # By epochs, or by what is best, it is no interval to be held to.
        if found.get("save_strategy") == "steps":
            found["save_steps"] = state.save_steps
    return {name: fact for name, fact in found.items() if fact is not None}


def _algorithm(args: Any) -> str:
    """`grpo` for TRL's GRPOConfig and its heirs; empty for arguments that are not TRL's."""
    for kind in type(args).__mro__:
        if kind.__module__.partition(".")[0] == "trl" and kind.__name__.endswith("Config"):
            return kind.__name__.removesuffix("Config").lower()
    return ""


def _version(library: str) -> str | None:
    """Of a library that is loaded; importing one to ask it would be a bad trade."""
    version = getattr(sys.modules.get(library), "__version__", None)
    return str(version) if version is not None else None


def _model(model: Any) -> str | None:
    """A model's name; of one from a folder, the folder's; of one without, its architecture."""
    name = getattr(model, "name_or_path", None)
    if isinstance(name, str) and name:
        return Path(name).name if Path(name).is_dir() else name[:_TEXT]
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return kind if isinstance(kind, str) and kind else None


def _fact(value: Any) -> Any:
    """A number or a short text; None for what is neither."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value)) if all(isinstance(v, str) for v in value) else None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return value
    return str(value)[:_TEXT] if isinstance(value, str) else None
