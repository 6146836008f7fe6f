"""The loss around the weights of a model, along one or two directions in weight space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from sentinel.insight.sharpness import finite_values


@dataclass(frozen=True, slots=True)
class LossSurface:
    """The loss on a line or a plane through the weights of a model.

    A point (x, y) stands for the weights `center + x * direction[0] + y * direction[1]`. Losses
    that are not finite are None.
    """

    x: list[float]
    """Coordinates of the columns of `loss` along the first direction."""
    y: list[float]
    """Coordinates of the rows of `loss` along the second direction; empty in one dimension."""
    loss: list[list[float | None]]
    """Losses interpolated to a grid for display; one row in one dimension."""
    points: list[list[float | None]]
    """The evaluations: x, y (0 in one dimension) and loss."""
    directions: list[dict[str, Any]]
    """For each direction `name`, `kind`, `norm` (L2, of the displacement at 1), `eigenvalue` (of
    the Hessian, or None) and `explained` (share of the movement in the trajectory, or None)."""
    center: dict[str, Any]
    """`x`, `y` and `loss` of the weights themselves."""
    trajectory: list[dict[str, Any]] = field(default_factory=list)
    """Checkpoints projected onto the plane: `step`, `x`, `y` and `loss`, which is that of the
    checkpoint itself, not of the point below it in the plane."""
    arrows: list[list[float]] = field(default_factory=list)
    """The negative gradient projected onto the plane, on a coarse grid: x, y, dx, dy."""
    features: list[dict[str, Any]] = field(default_factory=list)
    """Minima, saddles and maxima: `kind`, `x`, `y`, `loss`."""
    sharpness: dict[str, Any] | None = None
    """Curvature at the centre, see `Sharpness`; None if it was not measured."""
    evaluations: int = 0
    seconds: float = 0.0
    parameter_count: int = 0
    """Number of weights that the directions change."""
    selection: str = ""
    """Which weights these are, in words."""
    step: int | None = None
    model: str = ""
    note: list[str] = field(default_factory=list)
    """What a reader of the picture should know, one sentence each."""
    name: str = ""
    kind: str = "loss_surface"

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; numbers that are not finite become None."""
        values: dict[str, Any] = finite_values(asdict(self))
        return values

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The surface whose `to_json` returned `data`. Keys that are not known are ignored."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})
