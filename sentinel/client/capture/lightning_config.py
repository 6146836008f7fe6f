"""Lightning facts: what a `lightning.Trainer` and its module say of a run as it begins to fit."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

TRAINER_SETTINGS = (
    "max_epochs", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm",
    "log_every_n_steps", "check_val_every_n_epoch", "val_check_interval", "precision", "num_nodes",
    "world_size",
)  # fmt: skip
"""Settings of a trainer worth telling, by Lightning's own names."""

MAX_HYPER_PARAMETERS = 64
"""Of a module, at most. Numbers only: a text might be a secret."""

Facts = dict[str, str | float]


def run_metadata(trainer: Any, package: str) -> Facts:
    """Framework, model, settings and hyper-parameters, as numbers and short texts."""
    module = trainer.lightning_module
    found: dict[str, Any] = dict(_hyper_parameters(module))
    found |= {name: getattr(trainer, name, None) for name in TRAINER_SETTINGS}
    found |= {
        "framework": "lightning",
        "framework_version": str(getattr(sys.modules[package], "__version__", "")),
        "model": type(module).__name__,
        "strategy": type(trainer.strategy).__name__,
        "output_dir": str(Path(trainer.default_root_dir).absolute()),
        "optimizers": ",".join(type(each).__name__ for each in trainer.optimizers),
        "optimization": "automatic" if module.automatic_optimization else "manual",
        "learning_rate": _learning_rate(trainer),
        "save_steps": _save_steps(trainer),
    }
    if trainer.max_steps > 0:
        found["max_steps"] = trainer.max_steps
    if trainer.global_step:
        found["resumed_from"] = trainer.global_step
    return {name: fact for name, fact in found.items() if type(fact) in (str, int, float)}


def _hyper_parameters(module: Any) -> Iterator[tuple[str, float]]:
    kept = getattr(module, "hparams", None)
    numbers = kept.items() if isinstance(kept, Mapping) else ()
    plain = [(n, v) for n, v in numbers if type(n) is str and type(v) in (int, float)]
    yield from plain[:MAX_HYPER_PARAMETERS]


def _learning_rate(trainer: Any) -> Any:
    """The first optimizer's, unless it is kept on a device."""
    for optimizer in trainer.optimizers:
        return optimizer.param_groups[0].get("lr")
    return None


def _save_steps(trainer: Any) -> int | None:
    """The interval of saving, where a checkpoint is written at each turn of it."""
    for callback in trainer.checkpoint_callbacks:
        every = getattr(callback, "_every_n_train_steps", 0)
        # One that monitors a metric saves only what is better than before.
        if type(every) is int and every > 0 and getattr(callback, "monitor", "") is None:
            return every
    return None
