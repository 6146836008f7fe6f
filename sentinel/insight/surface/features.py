"""Finds the minima, saddles and maxima of a sampled loss surface.

Candidates are those of its topology that persist (Edelsbrunner, Letscher and Zomorodian 2002): a
minimum counts if the loss has to rise by more than a threshold to leave it for a lower one, and the
saddle is where it is left. Noise and errors of interpolation make many shallow minima, but no deep
ones. A candidate is a point of a grid, which a narrow valley passes between, so that its floor
seems to have bumps. So each is moved to where the gradient is zero, by Newton's method on quadratic
fits, and is kept only if the losses on circles around it are those of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import dist
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.ndimage import binary_erosion
from scipy.spatial import cKDTree
from scipy.stats import chi2

from sentinel.insight.surface.sampling import Interpolator, Point, SampledSurface

Array = NDArray[np.float64]
Grid = tuple[Sequence[float], Sequence[float], Sequence[Sequence[float]]]
Evaluate = Callable[[Sequence[Point]], Sequence[float]]
Cell = tuple[int, int]

MAX_FEATURES = 10
"""Features of each kind, the most persistent ones."""
MIN_DEPTH = 0.02
"""Shallower minima are ignored; as a share of the median loss above the lowest one."""
NOISE_DEPTH = 6.0
"""The same in standard deviations of the noise."""
MAX_SHIFT = 0.4
"""A candidate is moved by at most this share of the bounds."""
ROUGH_DEPTH = 3.0
"""The same in standard deviations of what quadratic fits leave around."""
FIT_CELLS = 2.0
"""Radius of the fits and of the smallest circle, in cells of the grid."""
_ITERATIONS = 80
_MAX_STEP = 0.5
"""Of an iteration along each axis of the fit, in radii: along the floor of a curved valley a fit is
wrong until its centre is on the floor."""
_ANGLES = 48
_NEIGHBOURS = {1: 6, 2: 12}
"""Points to which a surface is fitted to estimate the noise, by dimensions."""
_NEAREST = 4
"""Points whose fits show how rough a surface is at a place."""


def find_features(
    surface: SampledSurface, grid: Grid, evaluate: Evaluate | None = None
) -> list[dict[str, Any]]:
    """Minima, saddles and maxima: `{"kind", "x", "y", "loss", "depth", "evaluated"}`.

    `grid` is the surface as of `SampledSurface.grid`. `depth` is by how much the loss rises on the
    way to a lower minimum (falls, to a higher maximum), None for the lowest and for saddles.
    A depth is above the noise of the evaluations, and above what quadratic fits leave around. In
    one dimension `y` is 0, and there are no saddles. What lies on the border of the grid or of a
    hole is no feature.

    `evaluate` returns the losses at places between the points. `loss` is then evaluated at `x` and
    `y`, and otherwise interpolated; the lowest minimum and the highest maximum are never worse than
    an evaluated point beside them.
    """
    losses = np.array(grid[2], dtype=float)
    losses[~np.isfinite(losses)] = np.nan
    finite = losses[np.isfinite(losses)]
    if not finite.size:
        return []
    roughness = _Roughness(surface)
    middle = float(np.median(finite))
    least = max(MIN_DEPTH * (middle - float(finite.min())), NOISE_DEPTH * roughness.noise)
    relief = _Relief(surface.interpolator(), losses.shape, roughness)
    low, high = np.array(surface.bounds).T
    features: list[dict[str, Any]] = []
    kept: list[tuple[Cell, Array]] = []
    for kind, cell, place, depth in _candidates(losses, middle, least, relief, roughness):
        same = [at for each, (_, at) in zip(features, kept, strict=True) if each["kind"] == kind]
        if len(same) < MAX_FEATURES and all(relief.is_apart(at, place) for at in same):
            x, y = [*(low + place * (high - low)).tolist(), 0.0][:2]
            loss = float(relief.losses(place[None])[0])
            kept.append((cell, place))
            features.append(
                {"kind": kind, "x": x, "y": y, "loss": loss, "depth": depth, "evaluated": False}
            )
    if evaluate is not None and features:
        places = [(each["x"], each["y"])[: len(low)] for each in features]
        for feature, loss in zip(features, evaluate(places), strict=True):
            feature |= {"loss": float(loss), "evaluated": True}
    return [
        _best_point(each, cell, surface.points, grid)
        for each, (cell, _) in zip(features, kept, strict=True)
    ]


def _candidates(
    losses: Array, middle: float, least: float, relief: _Relief, roughness: _Roughness
) -> Iterator[tuple[str, Cell, Array, float | None]]:
    """Kind, cell, place and depth of each feature, the most persistent ones of a kind first."""
    # Cells with all their neighbours inside of the grid and of the surface.
    inner = binary_erosion(np.isfinite(losses), np.ones((min(len(losses), 3), 3)))
    joins: dict[Cell, float] = {}
    for kind, sign in (("minimum", 1.0), ("maximum", -1.0)):
        for each in _extrema(sign * losses, sign * middle, least):
            if each.left_at is not None:
                joins[each.left_at] = max(each.depth, joins.get(each.left_at, 0.0))
            place = relief.extremum(each.cell, sign) if inner[each.cell] else None
            if place is not None and each.depth > ROUGH_DEPTH * roughness.at(place):
                yield kind, each.cell, place, each.depth if each.left_at else None
    if len(losses) > 1:
        # A minimum and a maximum may be left at one saddle.
        for cell in sorted(joins, key=lambda each: -joins[each]):
            place = relief.saddle(cell) if inner[cell] else None
            if place is not None:
                yield "saddle", cell, place, None


class _Relief:
    """The interpolated surface over shares of the bounds, around candidates."""

    def __init__(self, losses: Interpolator, shape: tuple[int, ...], roughness: _Roughness) -> None:
        self.losses, self._roughness = losses, roughness
        self._dimensions = 1 if shape[0] == 1 else 2
        self._cell = 1.0 / (shape[1] - 1)
        if self._dimensions == 1:
            self._circle = np.array([[-1.0], [1.0]])
        else:
            angles = 2 * np.pi * np.arange(_ANGLES) / _ANGLES
            self._circle = np.column_stack([np.cos(angles), np.sin(angles)])
        every = self._circle if self._dimensions == 1 else self._circle[::4]
        self._disc = np.vstack([0 * every[:1], every / 2, every])
        self._fit = np.linalg.pinv(_quadratic_terms(self._disc))
        self._shape = shape

    def extremum(self, cell: Cell, sign: float) -> Array | None:
        """The minimum (sign 1) or maximum (-1) at this candidate; None if there is none."""
        start = self._start(cell)
        place = self._critical_point(start)
        if place is not None:
            slack = self._roughness.at(place)
            ring = sign * (self._ring(place, FIT_CELLS * self._cell) - self._loss(place))
            is_better = sign * (self._loss(place) - self._loss(start)) <= slack
            if is_better and (ring >= -slack).all():
                return place
        # The tip of a crease, where there is no gradient.
        ring = sign * (self._ring(start, self._cell) - self._loss(start))
        return start if (ring >= -self._roughness.at(start)).all() else None

    def saddle(self, cell: Cell) -> Array | None:
        """The saddle at this candidate: up and down alternate twice or more around it."""
        start = self._start(cell)
        place = self._critical_point(start)
        if place is None:
            return None
        radius, slack = FIT_CELLS * self._cell, self._roughness.at(place)
        while radius <= MAX_SHIFT:
            rise = self._ring(place, radius) - self._loss(place)
            signs = np.sign(rise[np.abs(rise) > slack])
            if np.isfinite(rise).all() and np.count_nonzero(signs != np.roll(signs, 1)) >= 4:
                return place
            radius *= 1.5
        return None

    def is_apart(self, one: Array, two: Array) -> bool:
        """Whether two places are not the same one."""
        return dist(one, two) > FIT_CELLS * self._cell

    def _start(self, cell: Cell) -> Array:
        row, column = cell
        place = [column / (self._shape[1] - 1)]
        if self._dimensions == 2:
            place.append(row / (self._shape[0] - 1))
        return np.array(place)

    def _loss(self, place: Array) -> float:
        return float(self.losses(place[None])[0])

    def _ring(self, place: Array, radius: float) -> Array:
        return self.losses(place + radius * self._circle)

    def _critical_point(self, start: Array) -> Array | None:
        """Where the gradient is zero, near the start; None if that is beyond `MAX_SHIFT`."""
        place: Array = start
        radius = FIT_CELLS * self._cell
        for _ in range(_ITERATIONS):
            values = self.losses(place + radius * self._disc)
            if not np.isfinite(values).all():
                return None
            gradient, hessian = _gradient_and_hessian(self._fit @ values, self._dimensions)
            curvatures, axes = np.linalg.eigh(hessian)
            is_flat = np.abs(curvatures) <= 1e-9 * np.abs(curvatures).max()
            steps = -(gradient @ axes) / np.where(is_flat, np.inf, curvatures)
            length = float(np.linalg.norm(steps))
            place = place + radius * axes @ np.clip(steps, -_MAX_STEP, _MAX_STEP)
            if dist(place, start) > MAX_SHIFT or (place < 0).any() or (place > 1).any():
                return None
            if length < 1e-3:
                return place
        return None


def _quadratic_terms(offsets: Array) -> Array:
    """1, the coordinates, and their products, as columns."""
    products = [offsets[..., i] * offsets[..., j] for i, j in _pairs(offsets.shape[-1])]
    ones = np.ones(offsets.shape[:-1])
    return np.stack([ones, *np.moveaxis(offsets, -1, 0), *products], axis=-1)


def _gradient_and_hessian(terms: Array, dimensions: int) -> tuple[Array, Array]:
    """Of the quadratic with these factors of `_quadratic_terms`."""
    gradient, hessian = terms[1 : dimensions + 1], np.zeros((dimensions, dimensions))
    for factor, (i, j) in zip(terms[dimensions + 1 :], _pairs(dimensions), strict=True):
        hessian[i, j] += factor
        hessian[j, i] += factor
    return gradient, hessian


class _Extremum(NamedTuple):
    """A minimum, by how much the loss rises to leave it for a lower one, and in which cell."""

    cell: Cell
    depth: float
    left_at: Cell | None


def _extrema(losses: Array, middle: float, least: float) -> list[_Extremum]:
    """Minima of a grid, deepest first, by joining their basins from the lowest loss to the highest.

    They are deeper than `least`; the lowest one is so far below the `middle`. A basin are the cells
    from which the steepest way down, over the eight cells around each, leads to one minimum.
    """
    flat = losses.ravel()
    order = np.argsort(flat, kind="stable")[: int(np.isfinite(flat).sum())]
    count, values = len(order), flat[order]
    # Cells by their rank among the losses, which differs where losses are equal.
    ranks = np.full(flat.size, count)
    ranks[order] = np.arange(count)
    padded = np.pad(ranks.reshape(losses.shape), 1, constant_values=count)
    around = sliding_window_view(padded, losses.shape).reshape(9, -1)[:, order]
    basins = around.min(0)
    while not np.array_equal(basins, lower := basins[basins]):
        basins = lower
    # The basins of a cell and of each lower one beside it, where they differ.
    beside = np.append(basins, -1)[around]
    is_border = (around < np.arange(count)) & (beside != basins)
    at = np.nonzero(is_border.T)[0]
    pairs = np.sort(np.column_stack([basins[at], beside.T[is_border.T]]), axis=1)
    # The lowest cell at which each two basins meet.
    lowest = np.sort(np.unique(pairs @ [count, 1], return_index=True)[1])
    # The deepest basin to which each was joined.
    joined = {basin: basin for basin in np.unique(basins).tolist()}
    found = []

    def deepest(basin: int) -> int:
        while joined[basin] != basin:
            joined[basin] = basin = joined[joined[basin]]
        return basin

    def place(rank: int) -> Cell:
        row, column = divmod(int(order[rank]), losses.shape[1])
        return row, column

    for rank, pair in zip(at[lowest].tolist(), pairs[lowest].tolist(), strict=True):
        kept, left = sorted(map(deepest, pair))
        joined[left] = kept
        depth = float(values[rank] - values[left])
        if kept != left and depth > least:
            found.append(_Extremum(place(left), depth, place(rank)))
    found += [
        _Extremum(place(basin), np.inf, None)
        for basin, into in joined.items()
        if basin == into and middle - values[basin] > least
    ]
    return sorted(found, key=lambda each: (-each.depth, each.cell))


def _best_point(
    feature: dict[str, Any], cell: Cell, points: Mapping[Point, float], grid: Grid
) -> dict[str, Any]:
    """The feature, at an evaluated point beside it if that is a lower minimum, or higher maximum.

    Points beside the cell of the candidate count too.
    """
    if feature["kind"] == "saddle":
        return feature
    sign = 1.0 if feature["kind"] == "minimum" else -1.0
    xs, ys = grid[0], grid[1] or (0.0,)
    width, height = ((axis[1] - axis[0]) * 1.001 if len(axis) > 1 else 0.0 for axis in (xs, ys))
    places = [(feature["x"], feature["y"]), (xs[cell[1]], ys[cell[0]])]
    best = feature
    for point, loss in points.items():
        x, y = [*point, 0.0][:2]
        is_near = any(abs(x - a) <= width and abs(y - b) <= height for a, b in places)
        if is_near and np.isfinite(loss) and not sign * loss > sign * best["loss"]:
            best = {**feature, "x": x, "y": y, "loss": loss, "evaluated": True}
    return best


class _Roughness:
    """What quadratics leave that are fitted to evaluated points next to each other."""

    def __init__(self, surface: SampledSurface) -> None:
        finite = {point: loss for point, loss in surface.points.items() if np.isfinite(loss)}
        self._tree: cKDTree | None = None
        self.noise = 0.0
        """Standard deviation of the noise of the evaluations.

        It is the median over the area: most points are where the surface is steep, and that is no
        noise.
        """
        count = _NEIGHBOURS[len(surface.bounds)]
        if len(finite) <= 2 * count:
            return
        low, high = np.array(surface.bounds).T
        at, losses = (np.array(list(finite)) - low) / (high - low), np.array(list(finite.values()))
        self._tree = cKDTree(at)
        distances, near = self._tree.query(at, count)
        offsets = (at[near] - at[:, None]) / (distances[:, -1:, None] + 1e-300)
        terms = _quadratic_terms(offsets)
        scale = float(np.abs(losses).max()) or 1.0
        values = losses[near] / scale
        basis = np.linalg.qr(terms)[0]
        left = values - (basis @ (basis.transpose(0, 2, 1) @ values[..., None]))[..., 0]
        squares = (left**2).sum(1)
        order = np.argsort(squares)
        area = np.cumsum(distances[order, -1] ** at.shape[1])
        median = squares[order[np.searchsorted(area, area[-1] / 2)]]
        freedom = count - terms.shape[-1]
        self.noise = scale * float(np.sqrt(median / chi2.median(freedom)))
        self._deviations = scale * np.sqrt(squares / freedom)

    def at(self, place: Array) -> float:
        """The standard deviation of what is left around a place: noise, or what is no quadratic."""
        if self._tree is None:
            return 0.0
        near = self._tree.query(place, _NEAREST)[1]
        return max(float(self._deviations[near].max()), 2 * self.noise)


def _pairs(dimensions: int) -> Iterator[Cell]:
    return ((i, j) for i in range(dimensions) for j in range(i, dimensions))
