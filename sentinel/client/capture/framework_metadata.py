"""Run metadata from the objects of a framework: `transformers`, TRL, Lightning and verl.

Each function returns numbers and short texts by name: framework, model, settings and versions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sentinel.signals.framework_config import (
    MAX_SETTING_CHARS,
    ConfigMetadata,
    adapter_type,
    extract_trainer_settings,
    extract_verl_settings,
    to_setting,
)

LIBRARIES = ("torch", "transformers", "accelerate", "trl", "peft", "deepspeed", "vllm", "datasets")
"""Libraries whose versions `transformers_metadata` reports."""

MAX_WRAPPERS = 4
"""Wrappers of an optimizer, one in the other."""

LIGHTNING_SETTINGS = (
    "max_epochs", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm",
    "log_every_n_steps", "check_val_every_n_epoch", "val_check_interval", "precision", "num_nodes",
    "world_size",
)  # fmt: skip
"""Attributes of a Lightning trainer that are reported under the same name."""

MAX_HYPER_PARAMETERS = 64
"""Hyper-parameters of a Lightning module. Numbers only: a text might be a secret."""


def transformers_metadata(
    args: Any, state: Any, model: Any, optimizer: Any = None
) -> ConfigMetadata:
    """Metadata of a `transformers.Trainer`, or one of TRL's, from its arguments and its state.

    `optimizer` is the one in use, which need not be what the arguments name.
    """
    algorithm = _trl_algorithm(args)
    framework = "trl" if algorithm else "transformers"
    metadata: dict[str, Any] = dict(
        extract_trainer_settings(lambda name: getattr(args, name, None), algorithm)
    )
    metadata |= {name: _version(name) for name in LIBRARIES}
    metadata |= {
        "framework": framework,
        "framework_version": _version(framework),
        "model": _model_name(model),
        "peft_type": adapter_type(getattr(model, "peft_config", None)),
        "optimizers": _optimizer_name(optimizer),
        "output_dir": str(Path(args.output_dir).absolute()),
    }
    if state.max_steps > 0:
        metadata["max_steps"] = state.max_steps
        # Other strategies, by epoch or by the best metric, have no fixed interval.
        if metadata.get("save_strategy") == "steps":
            metadata["save_steps"] = state.save_steps
    return {name: value for name, value in metadata.items() if value is not None}


def dataset_metadata(loader: Any) -> ConfigMetadata:
    """Fingerprint and number of rows of a loader's data set, if it is one of `datasets`.

    The fingerprint changes with the rows and with what was applied to them, a shuffle included.
    """
    dataset: Any = getattr(loader, "dataset", None)
    fingerprint = getattr(dataset, "_fingerprint", None)
    if type(dataset).__module__.partition(".")[0] != "datasets" or not fingerprint:
        return {}
    return {"dataset_fingerprint": str(fingerprint), "dataset_rows": len(dataset)}


def lightning_metadata(trainer: Any, package: str) -> ConfigMetadata:
    """Metadata of a Lightning trainer and its module; `package` is the name of Lightning's."""
    module = trainer.lightning_module
    metadata: dict[str, Any] = dict(_hyper_parameters(module))
    metadata |= {name: getattr(trainer, name, None) for name in LIGHTNING_SETTINGS}
    metadata |= {
        "framework": "lightning",
        "framework_version": str(getattr(sys.modules[package], "__version__", "")),
        "model": type(module).__name__,
        "strategy": type(trainer.strategy).__name__,
        "output_dir": str(Path(trainer.default_root_dir).absolute()),
        "optimizers": ",".join(type(each).__name__ for each in trainer.optimizers),
        "optimization": "automatic" if module.automatic_optimization else "manual",
        "learning_rate": _learning_rate(trainer),
        "save_steps": _lightning_save_steps(trainer),
    }
    if trainer.max_steps > 0:
        metadata["max_steps"] = trainer.max_steps
    if trainer.global_step:
        metadata["resumed_from"] = trainer.global_step
    return {name: value for name, value in metadata.items() if type(value) in (str, int, float)}


def verl_metadata(project: Any, experiment: Any, config: Any) -> ConfigMetadata:
    """Metadata of a verl run from the arguments of its tracker; `config` may be incomplete."""
    named = {
        "project": project,
        "experiment": experiment,
        "framework_version": getattr(sys.modules.get("verl"), "__version__", None),
    }
    values = {name: to_setting(value) for name, value in named.items()}
    known = {name: value for name, value in values.items() if value is not None}
    return {**extract_verl_settings(config), **known, "framework": "verl"}


def _trl_algorithm(args: Any) -> str:
    """`grpo` for TRL's GRPOConfig and its subclasses; empty if the arguments are not TRL's."""
    for kind in type(args).__mro__:
        if kind.__module__.partition(".")[0] == "trl" and kind.__name__.endswith("Config"):
            return kind.__name__.removesuffix("Config").lower()
    return ""


def _version(library: str) -> str | None:
    """The version of a library that is loaded; it is not imported for this."""
    version = getattr(sys.modules.get(library), "__version__", None)
    return str(version) if version is not None else None


def _model_name(model: Any) -> str | None:
    """The name of a model, or of the folder it was loaded from, or of its architecture."""
    name = getattr(model, "name_or_path", None)
    if isinstance(name, str) and name:
        return Path(name).name if Path(name).is_dir() else name[:MAX_SETTING_CHARS]
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return kind if isinstance(kind, str) and kind else None


def _optimizer_name(optimizer: Any) -> str | None:
    """The class of an optimizer inside the wrappers of Accelerate and DeepSpeed."""
    for _ in range(MAX_WRAPPERS):
        optimizer = getattr(optimizer, "optimizer", optimizer)
    name = type(optimizer).__name__
    # A placeholder is replaced by an engine, or does nothing: the settings name the optimizer.
    return None if optimizer is None or "Dummy" in name else name[:MAX_SETTING_CHARS]


def _hyper_parameters(module: Any) -> Iterator[tuple[str, float]]:
    saved = getattr(module, "hparams", None)
    items = saved.items() if isinstance(saved, Mapping) else ()
    numbers = [(n, v) for n, v in items if type(n) is str and type(v) in (int, float)]
    yield from numbers[:MAX_HYPER_PARAMETERS]


def _learning_rate(trainer: Any) -> Any:
    """The first optimizer's learning rate."""
    for optimizer in trainer.optimizers:
        return optimizer.param_groups[0].get("lr")
    return None


def _lightning_save_steps(trainer: Any) -> int | None:
    """Steps between two checkpoints, if a callback saves one at a fixed interval."""
    for callback in trainer.checkpoint_callbacks:
        every = getattr(callback, "_every_n_train_steps", 0)
        # A callback that monitors a metric saves only when the metric improves.
        if type(every) is int and every > 0 and getattr(callback, "monitor", "") is None:
            return every
    return None
