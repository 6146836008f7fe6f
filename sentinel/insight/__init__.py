"""Measurements of a model, and the importance of hyper-parameters.

The functions take the objects of a trainer or of a notebook, or stored runs. They need the extra
`train-sentinel[insight]`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentinel.insight.figures import plot, save_figure
    from sentinel.insight.gradient_flow import GradientFlow
    from sentinel.insight.gradient_flow import gradient_flow as gradient_flow
    from sentinel.insight.importance import Importance
    from sentinel.insight.importance import importance as importance
    from sentinel.insight.loss_surface import LossSurface
    from sentinel.insight.loss_surface import loss_surface as loss_surface
    from sentinel.insight.model_state import preserved
    from sentinel.insight.principal_directions import principal_directions as principal_directions
    from sentinel.insight.sharpness import Sharpness
    from sentinel.insight.sharpness import sharpness as sharpness
    from sentinel.insight.trajectory import Trajectory, TrajectoryRecorder
    from sentinel.insight.trajectory import trajectory as trajectory

__all__ = [
    "GradientFlow",
    "Importance",
    "LossSurface",
    "Sharpness",
    "Trajectory",
    "TrajectoryRecorder",
    "plot",
    "preserved",
    "save_figure",
]

_MODULES = {
    "GradientFlow": "sentinel.insight.gradient_flow",
    "Importance": "sentinel.insight.importance",
    "LossSurface": "sentinel.insight.loss_surface",
    "Sharpness": "sentinel.insight.sharpness",
    "Trajectory": "sentinel.insight.trajectory",
    "TrajectoryRecorder": "sentinel.insight.trajectory_recorder",
    "plot": "sentinel.insight.figures",
    "preserved": "sentinel.insight.model_state",
    "save_figure": "sentinel.insight.figures",
}
_FUNCTIONS = frozenset(
    {
        "gradient_flow",
        "importance",
        "loss_surface",
        "principal_directions",
        "sharpness",
        "trajectory",
    }
)
"""Functions with the name of their module: `sentinel.insight.trajectory(recorder)`."""


def __getattr__(name: str) -> Any:
    path = f"{__name__}.{name}" if name in _FUNCTIONS else _MODULES.get(name)
    if path is None:
        raise AttributeError(f"module 'sentinel.insight' has no attribute {name!r}")
    # Imported on first use: torch and scikit-learn are slow to import, and reports need neither.
    from importlib import import_module  # noqa: PLC0415

    value = globals()[name] = getattr(import_module(path), name)
    return value


class _Package(ModuleType):
    """Importing a module sets it as attribute of its package, where the function is expected."""

    def __setattr__(self, name: str, value: Any) -> None:
        is_own_module = isinstance(value, ModuleType) and name in _FUNCTIONS
        super().__setattr__(name, getattr(value, name, value) if is_own_module else value)


sys.modules[__name__].__class__ = _Package
