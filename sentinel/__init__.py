"""sentinel watches a training run and wakes the right person with a diagnosis.

Decorate the training function with `monitor`; everything else is optional: `log` adds values,
`log_samples` texts, `mark` tells of checkpoints and evaluations, `phase` of time spent on something
else; `requested` says what a loop is asked to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentinel.client.api import log, log_samples, mark, phase, requested
    from sentinel.client.arguments import SettingsError
    from sentinel.client.monitor import monitor

__version__ = "0.1.0"

__all__ = [
    "SettingsError",
    "__version__",
    "log",
    "log_samples",
    "mark",
    "monitor",
    "phase",
    "requested",
]

_HOMES = {
    "SettingsError": "sentinel.client.arguments",
    "monitor": "sentinel.client.monitor",
    "log": "sentinel.client.api",
    "log_samples": "sentinel.client.api",
    "mark": "sentinel.client.api",
    "phase": "sentinel.client.api",
    "requested": "sentinel.client.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sentinel' has no attribute {name!r}")
    # Bound on first use: importing sentinel alone must cost a trainer nothing.
    from importlib import import_module  # noqa: PLC0415

    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found
