"""What is worked out for people: reports, comparisons, and measurements of a model.

Reports and comparisons read stored runs. The measurements are functions that take the objects of a
trainer or of a notebook, and need the extra `train-sentinel[insight]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentinel.insight.loss_surface import LossSurface
    from sentinel.insight.model_state import preserved
    from sentinel.insight.sharpness import Sharpness

__all__ = [
    "LossSurface",
    "Sharpness",
    "preserved",
]

_MODULES = {
    "LossSurface": "sentinel.insight.loss_surface",
    "Sharpness": "sentinel.insight.sharpness",
    "preserved": "sentinel.insight.model_state",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'sentinel.insight' has no attribute {name!r}")
    # Imported on first use: torch and scikit-learn are slow to import, and reports need neither.
    from importlib import import_module  # noqa: PLC0415

    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value
