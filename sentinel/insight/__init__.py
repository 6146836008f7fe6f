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
    from sentinel.insight.importance.importance import Importance
    from sentinel.insight.importance.importance import importance as importance
    from sentinel.insight.measure.model_state import preserved
    from sentinel.insight.measure.sharpness import Sharpness, sharpness
    from sentinel.insight.surface.loss_surface import LossSurface, loss_surface
    from sentinel.insight.surface.sampling import denser_near
    from sentinel.insight.trajectory.principal_directions import principal_directions
    from sentinel.insight.trajectory.recorder import TrajectoryRecorder
    from sentinel.insight.trajectory.trajectory import Trajectory
    from sentinel.insight.trajectory.trajectory import trajectory as trajectory

__all__ = [
    "GradientFlow",
    "Importance",
    "LossSurface",
    "Sharpness",
    "Trajectory",
    "TrajectoryRecorder",
    "denser_near",
    "loss_surface",
    "plot",
    "preserved",
    "principal_directions",
    "save_figure",
    "sharpness",
]

_MODULES = {
    "GradientFlow": "gradient_flow",
    "Importance": "importance.importance",
    "LossSurface": "surface.loss_surface",
    "Sharpness": "measure.sharpness",
    "Trajectory": "trajectory.trajectory",
    "TrajectoryRecorder": "trajectory.recorder",
    "denser_near": "surface.sampling",
    "gradient_flow": "gradient_flow",
    "importance": "importance.importance",
    "loss_surface": "surface.loss_surface",
    "plot": "figures",
    "preserved": "measure.model_state",
    "principal_directions": "trajectory.principal_directions",
    "save_figure": "figures",
    "sharpness": "measure.sharpness",
    "trajectory": "trajectory.trajectory",
}
"""The module of each name. Three are names of modules too: `sentinel.insight.trajectory(recorder)`
is the function, `from sentinel.insight.trajectory.recorder import ...` the package."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'sentinel.insight' has no attribute {name!r}")
    # Imported on first use: torch and scikit-learn are slow to import, and reports need neither.
    from importlib import import_module  # noqa: PLC0415

    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


class _Package(ModuleType):
    """Importing a module sets it as attribute of its package, where the function is expected."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in _MODULES):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
