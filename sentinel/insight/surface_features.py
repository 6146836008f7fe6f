"""Finds the minima, saddles and maxima of a sampled loss surface.

They are those of its topology that persist (Edelsbrunner, Letscher and Zomorodian 2002): a minimum
counts if the loss has to rise by more than a threshold to leave it for a lower one, and the saddle
is where it is left. Noise and errors of interpolation make many shallow minima, but no deep ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.stats import chi2

Array = NDArray[np.float64]
Grid = tuple[Sequence[float], Sequence[float], Sequence[Sequence[float]]]

MAX_FEATURES = 10
"""Features of each kind, the most persistent ones."""
MIN_DEPTH = 0.02
"""Shallower minima are ignored; as a share of the median loss above the lowest one."""
NOISE_DEPTH = 6.0
"""The same in standard deviations of the noise."""
_NEIGHBOURS = 12
"""Points to which a surface is fitted to estimate the noise."""


def find_features(
    points: Mapping[tuple[float, ...], float], grid: Grid, *, noise: float = 0.0
) -> list[dict[str, Any]]:
    """Minima, saddles and maxima of a surface: `{"kind", "x", "y", "loss", "depth"}`.

    `points` are evaluated, `grid` is the surface between them as of `SampledSurface.grid`; in one
    dimension `y` is 0, and there are no saddles. `depth` is by how much the loss rises on the way
    to a lower minimum (falls, to a higher maximum), None for the lowest and for saddles. Nothing is
    deeper than `noise`, an error of the losses such as that of the interpolation; noise of the
    evaluations is estimated. What lies on the border of the grid or of a hole is no feature.
    """
    xs, ys, rows = grid
    losses = np.array(rows, dtype=float)
    losses[~np.isfinite(losses)] = np.nan
    finite = losses[np.isfinite(losses)]
    if not finite.size:
        return []
    middle = float(np.median(finite))
    least = max(MIN_DEPTH * (middle - float(finite.min())), noise, NOISE_DEPTH * _noise(points))
    inner = _inner(losses)
    minima = _extrema(losses, middle, least)
    maxima = _extrema(-losses, -middle, least)
    saddles = {each.left_at: each.depth for each in (*maxima, *minima) if each.left_at is not None}

    def place(cell: tuple[int, int]) -> dict[str, Any]:
        row, column = cell
        y = float(ys[row]) if len(ys) else 0.0
        return {"x": float(xs[column]), "y": y, "loss": float(losses[cell])}

    found: list[dict[str, Any]] = []
    for kind, extrema in (("minimum", minima), ("maximum", maxima)):
        kept = [each for each in extrema if inner[each.cell]][:MAX_FEATURES]
        for each in kept:
            feature = _at_point(place(each.cell), points, kind, xs, ys)
            depth = each.depth if np.isfinite(each.depth) else None
            found.append({"kind": kind, **feature, "depth": depth})
    if len(ys):
        kept_saddles: list[tuple[int, int]] = []
        for cell in sorted(saddles, key=lambda each: -saddles[each]):
            # One that both a minimum and a maximum is left at is in cells next to each other.
            is_new = all(max(abs(cell[0] - r), abs(cell[1] - c)) > 1 for r, c in kept_saddles)
            if inner[cell] and is_new:
                kept_saddles.append(cell)
        saddle_cells = kept_saddles[:MAX_FEATURES]
        found += [{"kind": "saddle", **place(cell), "depth": None} for cell in saddle_cells]
    return found


class _Extremum(NamedTuple):
    """A minimum, by how much the loss rises to leave it for a lower one, and in which cell."""

    cell: tuple[int, int]
    depth: float
    left_at: tuple[int, int] | None


def _extrema(losses: Array, middle: float, least: float) -> list[_Extremum]:
    """Minima of a grid, deepest first, by joining cells from the lowest loss to the highest.

    They are deeper than `least`; the lowest one is so far below the `middle`.
    """
    height, width = losses.shape
    flat = losses.ravel()
    order = np.argsort(flat, kind="stable")
    order = order[: int(np.isfinite(flat).sum())].tolist()
    values = flat.tolist()
    lowest: dict[int, int] = {}
    found = []

    def basin(cell: int) -> int:
        while lowest[cell] != cell:
            lowest[cell] = cell = lowest[lowest[cell]]
        return cell

    for cell in order:
        around = {basin(other) for other in _around(cell, height, width) if other in lowest}
        deepest = min(around, key=lambda each: (values[each], each), default=cell)
        lowest[cell] = deepest
        for other in around - {deepest}:
            lowest[other] = deepest
            depth = values[cell] - values[other]
            if depth > least:
                found.append(_Extremum(divmod(other, width), depth, divmod(cell, width)))
    roots = {basin(cell) for cell in order}
    found += [
        _Extremum(divmod(root, width), np.inf, None)
        for root in roots
        if middle - values[root] > least
    ]
    return sorted(found, key=lambda each: (-each.depth, each.cell))


def _around(cell: int, height: int, width: int) -> Iterator[int]:
    row, column = divmod(cell, width)
    for down, right in product((-1, 0, 1), repeat=2):
        if (down or right) and 0 <= row + down < height and 0 <= column + right < width:
            yield cell + down * width + right


def _inner(losses: Array) -> NDArray[np.bool_]:
    """Which cells have all their neighbours inside of the grid and of the surface."""
    is_line = len(losses) == 1
    outside = np.pad(
        np.isnan(losses), ((0, 0) if is_line else (1, 1), (1, 1)), constant_values=True
    )
    height, width = losses.shape
    shifts = product(range(1 if is_line else 3), range(3))
    beside = [outside[down : down + height, right : right + width] for down, right in shifts]
    inner: NDArray[np.bool_] = ~np.any(beside, axis=0)
    return inner


def _at_point(
    feature: dict[str, Any],
    points: Mapping[tuple[float, ...], float],
    kind: str,
    xs: Sequence[float],
    ys: Sequence[float],
) -> dict[str, Any]:
    """The extremum at an evaluated point within a cell, if that is still lower or higher."""
    sign = 1.0 if kind == "minimum" else -1.0
    width = abs(xs[1] - xs[0]) * 1.001
    height = abs(ys[1] - ys[0]) * 1.001 if len(ys) else 0.0
    best = feature
    for (x, *rest), loss in points.items():
        y = rest[0] if rest else 0.0
        is_near = abs(x - feature["x"]) <= width and abs(y - feature["y"]) <= height
        if is_near and sign * loss < sign * best["loss"] and np.isfinite(loss):
            best = {"x": x, "y": y, "loss": loss}
    return best


def _noise(points: Mapping[tuple[float, ...], float]) -> float:
    """Standard deviation of the noise of the evaluations: what a quadratic surface leaves.

    It is fitted to points next to each other. The median over the area is taken: most points are
    where the surface is steep, and that is no noise.
    """
    finite = {point: loss for point, loss in points.items() if np.isfinite(loss)}
    if len(finite) <= 2 * _NEIGHBOURS:
        return 0.0
    at, losses = np.array(list(finite)), np.array(list(finite.values()))
    at = (at - at.min(0)) / (np.ptp(at, axis=0) + 1e-300)
    distances, near = cKDTree(at).query(at, _NEIGHBOURS)
    offsets = (at[near] - at[:, None]) / (distances[:, -1:, None] + 1e-300)
    products = [offsets[..., i] * offsets[..., j] for i, j in _pairs(at.shape[1])]
    terms = np.stack([np.ones(near.shape), *np.moveaxis(offsets, -1, 0), *products], axis=-1)
    scale = float(np.abs(losses).max()) or 1.0
    values = losses[near] / scale
    basis = np.linalg.qr(terms)[0]
    left = values - (basis @ (basis.transpose(0, 2, 1) @ values[..., None]))[..., 0]
    squares = (left**2).sum(1)
    order = np.argsort(squares)
    area = np.cumsum(distances[order, -1] ** at.shape[1])
    median = squares[order[np.searchsorted(area, area[-1] / 2)]]
    return scale * float(np.sqrt(median / chi2.median(_NEIGHBOURS - terms.shape[-1])))


def _pairs(dimensions: int) -> Iterator[tuple[int, int]]:
    return ((i, j) for i in range(dimensions) for j in range(i, dimensions))
