"""verl facts: what the configuration that verl gives its trackers says of a run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."

SETTINGS = {
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

_TEXT = 200
"""Characters of a setting."""

Facts = dict[str, str | float]


def run_facts(project: Any, experiment: Any, config: Any) -> Facts:
    """Framework, algorithm, model and settings; `config` may be None, or lack any of them."""
    found = {name: _at(config, place) for name, place in SETTINGS.items()}
    found |= {"project": project, "experiment": experiment, "framework": "verl"}
    found["framework_version"] = getattr(sys.modules.get("verl"), "__version__", None)
    model = _at(config, "actor_rollout_ref.model.path") or _at(config, "model.path")
    if isinstance(model, str):
        found["model"] = Path(model).name
    for name, place in (("save_steps", "save_freq"), ("max_steps", "total_training_steps")):
        number = _at(config, f"trainer.{place}")
        # -1 stands for never, and none for as many as the data last.
        if type(number) is int and number > 0:
            found[name] = number
    beta = _beta(found)
    if beta is not None:
        found["beta"] = beta
    return {name: fact for name, fact in map(_fact, found.items()) if fact is not None}


def _beta(found: Mapping[str, Any]) -> Any:
    """The coefficient of the KL to the reference, wherever it enters; 0 where it does nowhere."""
    if found["use_kl_loss"] is True:
        return found["kl_loss_coef"]
    if found["use_kl_in_reward"] is True:
        return found["kl_ctrl.kl_coef"]
    return 0.0 if found["use_kl_loss"] is False else None


def _at(config: Any, place: str) -> Any:
    for name in place.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None
    return config


def _fact(item: tuple[str, Any]) -> tuple[str, Any]:
    name, value = item
    if isinstance(value, bool):
        return name, str(value).lower()
    if isinstance(value, str):
        return name, value[:_TEXT]
    return name, value if type(value) in (int, float) else None
