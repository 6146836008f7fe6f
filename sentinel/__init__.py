"""sentinel monitors PyTorch training and notifies people with a diagnosis.

Decorate the training function with `monitor`. Everything else is optional: `log` records values,
`log_samples` texts, `mark` checkpoints and evaluations, and `phase` time spent outside training
steps. `requested` returns the actions that a loop should take; `CommandContext` is the argument of
an `on_critical` function.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from sentinel.client.api import log, log_samples, mark, phase, requested
    from sentinel.client.arguments import SettingsError
    from sentinel.client.control.command_executor import CommandContext
    from sentinel.client.monitor import monitor

__version__ = "0.2.0.dev0"

__all__ = [
    "CommandContext",
    "SettingsError",
    "__version__",
    "log",
    "log_samples",
    "mark",
    "monitor",
    "phase",
    "requested",
]

_MODULES = {
    "CommandContext": "sentinel.client.control.command_executor",
    "SettingsError": "sentinel.client.arguments",
    "monitor": "sentinel.client.monitor",
    "log": "sentinel.client.api",
    "log_samples": "sentinel.client.api",
    "mark": "sentinel.client.api",
    "phase": "sentinel.client.api",
    "requested": "sentinel.client.api",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'sentinel' has no attribute {name!r}")
    # Imported on first use, so that `import sentinel` stays fast.
    from importlib import import_module  # noqa: PLC0415

    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value
