"""Samples a loss surface where its interpolation error is largest, coarse levels first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.interpolate import LinearNDInterpolator

Point = tuple[float, ...]
Bounds = Sequence[tuple[float, float]]
Evaluate = Callable[[Sequence[Point]], Sequence[float]]


@dataclass(frozen=True, slots=True)
class SampledSurface:
    """Evaluated points of a surface in `bounds`, one pair for each of one or two dimensions.

    A loss may be NaN or infinite: the surface has a hole there. `estimated_error` is the largest
    error that the interpolation is expected to have, in units of the loss; NaN where unknown.
    """

    points: dict[Point, float]
    bounds: tuple[tuple[float, float], ...]
    estimated_error: float

    def grid(self, n: int) -> tuple[list[float], list[float], list[list[float]]]:
        """The interpolated surface: n values of x, n of y, and a row of losses for each y.

        In one dimension there are no values of y and one row. Losses are NaN in holes.
        """
        axes = [np.linspace(low, high, n) for low, high in self.bounds]
        points = np.array(list(self.points))
        losses = np.array(list(self.points.values()))
        if len(axes) == 1:
            order = np.argsort(points[:, 0])
            row = np.interp(axes[0], points[order, 0], losses[order])
            return axes[0].tolist(), [], [row.tolist()]
        x, y = np.meshgrid(*axes)
        rows = LinearNDInterpolator(points, losses)(x, y)
        return axes[0].tolist(), axes[1].tolist(), rows.tolist()


def sample_surface(  # noqa: PLR0913 - keyword arguments with defaults
    evaluate: Evaluate,
    bounds: Bounds,
    *,
    max_evaluations: int,
    batch_size: int = 1,
    known: Mapping[Point, float] | None = None,
    on_points: Callable[[SampledSurface], None] | None = None,
    density: Callable[[Point], float] | None = None,
) -> SampledSurface:
    """Sample a function of one or two variables with at most `max_evaluations` points.

    `evaluate` gets up to `batch_size` points at once and returns their losses in order; which
    points are sampled does not depend on `batch_size`. `known` points are not evaluated again.
    `on_points` is called with the surface so far after each level. `density` of a point is a
    positive weight: where it is larger, the surface is sampled more densely.
    """
    del density
    edges = tuple((float(low), float(high)) for low, high in bounds)
    points: dict[Point, float] = {}
    side = int(max_evaluations ** (1 / len(edges)) + 1e-9)
    step = max(1, (side - 1) // 4)
    indices = range(side)
    coarse = sorted({*range(0, side, step), side - 1})
    values = [np.linspace(low, high, side).tolist() for low, high in edges]
    surface = SampledSurface({}, edges, float("nan"))
    for level in (coarse, indices):
        wanted = [
            tuple(values[axis][i] for axis, i in enumerate(index))
            for index in product(level, repeat=len(edges))
        ]
        wanted = [point for point in wanted if point not in points]
        found = {point: (known or {})[point] for point in wanted if point in (known or {})}
        missing = [point for point in wanted if point not in found]
        for start in range(0, len(missing), batch_size):
            batch = missing[start : start + batch_size]
            found.update(zip(batch, map(float, evaluate(batch)), strict=True))
        points |= {point: found[point] for point in wanted}
        surface = SampledSurface(dict(points), edges, float("nan"))
        if on_points is not None:
            on_points(surface)
    return surface
