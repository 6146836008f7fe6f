"""Trainer facts: what the arguments of a `transformers.Trainer`, or one of TRL's, say of a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sentinel.signals.framework_config import (
    MAX_SETTING_CHARS,
    ConfigMetadata,
    extract_trainer_settings,
)

LIBRARIES = ("torch", "transformers", "accelerate", "trl", "peft", "deepspeed", "vllm", "datasets")


def run_metadata(args: Any, state: Any, model: Any) -> ConfigMetadata:
    """What is known when a trainer begins: framework, algorithm, model, settings and versions."""
    algorithm = _algorithm(args)
    framework = "trl" if algorithm else "transformers"
    found: dict[str, Any] = dict(
        extract_trainer_settings(lambda name: getattr(args, name, None), algorithm)
    )
    found |= {name: _version(name) for name in LIBRARIES}
    found |= {
        "framework": framework,
        "framework_version": _version(framework),
        "model": _model_name(model),
        "output_dir": str(Path(args.output_dir).absolute()),
    }
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


def _model_name(model: Any) -> str | None:
    """A model's name; of one from a folder, the folder's; of one without, its architecture."""
    name = getattr(model, "name_or_path", None)
    if isinstance(name, str) and name:
        return Path(name).name if Path(name).is_dir() else name[:MAX_SETTING_CHARS]
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return kind if isinstance(kind, str) and kind else None
