"""Samples a loss surface: on a grid where it is smooth, else where the interpolation error is.

A coarse grid comes first. It predicts the centres of every second of its cells, and if it does so
within the tolerance, the surface is done. Otherwise the spacing is halved, until the budget allows
only one more such step. If the prediction then fails in a small part only (a cliff, a narrow
minimum, a ravine), the other points go there: the triangles are divided whose corners deviate most
from each other's tangent planes. Otherwise the grid is refined as a whole, since nothing is better
for a smooth surface, and the splines that it allows are far more accurate than triangles.

The division of triangles follows `Learner2D` of the library `adaptive` (Nijholt et al. 2019), with
less weight for the size of a triangle. The library is not used: on a smooth surface it has no grid
to fall back to, it samples inside of holes, and which points it samples depends on the order in
which ranks answer. `benchmarks/loss_surface.py` compares both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import exp, inf, isfinite, isqrt, nan
from typing import Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import (
    Akima1DInterpolator,
    CloughTocher2DInterpolator,
    CubicSpline,
    LinearNDInterpolator,
    NearestNDInterpolator,
    RectBivariateSpline,
)
from scipy.spatial import Delaunay, QhullError, cKDTree

Point = tuple[float, ...]
Bounds = Sequence[tuple[float, float]]
Evaluate = Callable[[Sequence[Point]], Sequence[float]]
Array = NDArray[np.float64]
Interpolator = Callable[[Array], Array]
Interpolation = Literal["linear", "cubic", "spline"]
"""`linear` and `cubic` are of triangles, or intervals in one dimension; `spline` is of a grid."""

MIN_EVALUATIONS = {1: 3, 2: 9}
"""By the number of dimensions: the smallest grid that has a middle."""
MAX_FINITE_LOSS = 1e150
"""Losses beyond are taken as infinite: their squares are."""
MIN_TRUSTED_INTERVALS = 7
"""No surface is done with a coarser grid, by its intervals along an axis: it may miss too much."""
TOLERANCE_MARGIN = 0.5
"""A surface is done if predictions err by less than this share of the tolerance: others may err
more than those that were tested."""
LOCAL_SHARE = 0.15
"""A surface has local structure if it is predicted well everywhere else than in this share."""
WELL_PREDICTED = 0.35
"""Share of the largest error: a grid of twice as many points would reduce it to about that."""
RESOLVED: dict[Interpolation, float] = {"cubic": 0.4, "spline": 0.2}
"""The grid resolves a surface if a prediction errs by less than this share of a linear one."""
SIZE_EXPONENT = 0.3
"""Weight of a triangle's area: 0 would divide a discontinuity at one place forever."""
AREA_WEIGHT = 0.1
"""Weight of the area alone, so that no part stays empty."""
MAX_EDGE_RATIO = 5.0
"""A triangle whose longest edge squared is so much above its area is divided at that edge."""
MIN_EDGE = 1e-3
"""Edges that are shorter, as a share of the bounds, are not divided."""
MIN_HOLE_EDGE = 0.03
"""The same where a hole begins, so that most points are left for the surface."""
WAVES = 20
"""Refinements of the triangulation; with more, each decides on newer losses."""

_MIN_TESTED = 8
"""Errors of prediction from which on it is decided whether structure is local."""
_ROUNDING = 1e-6
"""Errors that are a smaller share of the losses are those of single precision."""
_MIN_WAVE = 4
_RECENT_WAVES = 5
"""Waves whose errors choose the interpolation."""
_MIN_CUBIC = 4
"""Points of a curve through which other than lines are drawn."""
_ANYWHERE: tuple[Interpolation, ...] = ("linear", "cubic")
_ON_GRID: tuple[Interpolation, ...] = (*_ANYWHERE, "spline")
_GRID_GAIN: dict[Interpolation, float] = {"linear": 1 / 4, "cubic": 1 / 8, "spline": 1 / 16}
"""By what errors fall if the spacing is halved."""


@dataclass(frozen=True, slots=True)
class SampledSurface:
    """Evaluated points of a surface in `bounds`: one pair for each of one or two dimensions.

    A loss may be NaN or infinite: the surface has a hole there. `estimated_error` is the largest
    error that the interpolation is expected to have, in units of the loss; NaN where unknown.
    """

    points: dict[Point, float]
    bounds: tuple[tuple[float, float], ...]
    estimated_error: float = nan
    interpolation: Interpolation = "linear"
    intervals: int = 0
    """Of the grid through which a spline goes, along each axis; the points are on it or between."""

    def grid(self, n: int) -> tuple[list[float], list[float], list[list[float]]]:
        """The interpolated surface: n values of x, n of y, and a row of losses for each y.

        In one dimension there are no values of y and one row. Losses are NaN in holes.
        """
        units = np.linspace(0.0, 1.0, n)
        axes = [np.linspace(low, high, n).tolist() for low, high in self.bounds]
        function = self.interpolator()
        if len(axes) == 1:
            return axes[0], [], [function(units[:, None]).tolist()]
        y, x = np.meshgrid(units, units, indexing="ij")
        rows = function(np.column_stack([x.ravel(), y.ravel()])).reshape(n, n)
        return axes[0], axes[1], rows.tolist()

    def interpolator(self) -> Interpolator:
        """A function of an array (points, dimensions) of shares of the bounds, 0 to 1.

        It returns the losses there: NaN beyond the bounds and in holes.
        """
        low, high = np.array(self.bounds).T
        units = (np.array(list(self.points)) - low) / (high - low)
        losses = _with_holes(np.array(list(self.points.values())))
        if self.interpolation == "spline":
            is_known = _is_on_grid(units, self.intervals)
            units, losses = units[is_known], losses[is_known]
        return _with_gaps(self.interpolation, units, losses)


def sample_surface(  # noqa: PLR0913 - keyword arguments with defaults
    evaluate: Evaluate,
    bounds: Bounds,
    *,
    max_evaluations: int,
    batch_size: int = 1,
    known: Mapping[Point, float] | None = None,
    on_points: Callable[[SampledSurface], None] | None = None,
    density: Callable[[Point], float] | None = None,
    tolerance: float = 0.0,
) -> SampledSurface:
    """Sample a function of one or two variables with at most `max_evaluations` points.

    `evaluate` gets up to `batch_size` points at once and returns their losses in order. Which
    points are sampled depends on the losses only, not on `batch_size`. Points that are `known` are
    not evaluated again. `on_points` is called with the surface so far, first after a few points.
    `density` of a point is a positive weight: where it is larger, points are closer together.
    Sampling ends before the maximum once the error of the interpolation is estimated to be below
    `tolerance`, as a share of the median loss above the lowest one; 0 is never.

    Raises ValueError for arguments that cannot be sampled.
    """
    edges = _checked_bounds(bounds)
    dimensions = len(edges)
    if max_evaluations < MIN_EVALUATIONS[dimensions]:
        raise ValueError(
            f"max_evaluations is {max_evaluations}: a surface of {dimensions} dimension(s) needs "
            f"at least {MIN_EVALUATIONS[dimensions]} points"
        )
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}: it must be at least 1")
    if not 0.0 <= tolerance < inf:
        raise ValueError(f"tolerance is {tolerance}: it must be at least 0")
    sampler = _Sampler(
        evaluate, edges, max_evaluations, batch_size, known or {}, on_points, tolerance
    )
    if sampler.sample_grid(is_uniform=density is None):
        sampler.refine(density)
    return sampler.surface()


def denser_near(
    points: Sequence[Point], width: float, factor: float = 4.0
) -> Callable[[Point], float]:
    """A `density` for `sample_surface`: `factor` at the points, 1 far from them.

    It falls like a normal distribution of that `width` with the distance to the nearest point:
    the centre, or the steps of a trajectory that matter, such as those of early training.
    """
    if not points or width <= 0 or factor <= 0:
        raise ValueError("denser_near needs at least one point, and a positive width and factor")
    tree = cKDTree(np.array(points, dtype=float))

    def density(point: Point) -> float:
        distance = float(tree.query(point)[0])
        return 1.0 + (factor - 1.0) * exp(-0.5 * (distance / width) ** 2)

    return density


class _Sampler:
    """Points in the unit interval or square, with the losses that are known of them."""

    def __init__(  # noqa: PLR0913, PLR0917 - the arguments of sample_surface
        self,
        evaluate: Evaluate,
        edges: tuple[tuple[float, float], ...],
        max_evaluations: int,
        batch_size: int,
        known: Mapping[Point, float],
        on_points: Callable[[SampledSurface], None] | None,
        tolerance: float,
    ) -> None:
        self._evaluate, self._batch_size, self._known = evaluate, batch_size, known
        self._edges, self._on_points, self._tolerance = edges, on_points, tolerance
        self._budget = max_evaluations
        self._units: Array = np.empty((0, len(edges)))
        self._losses: Array = np.empty(0)
        self._points: dict[Point, float] = {}
        self._interpolation: Interpolation = "linear"
        self._error = nan
        self._intervals = self._published = 0

    def surface(self) -> SampledSurface:
        """What is sampled so far."""
        return SampledSurface(
            dict(self._points), self._edges, self._error, self._interpolation, self._intervals
        )

    def sample_grid(self, *, is_uniform: bool) -> bool:
        """Sample a grid level by level; whether the other points belong elsewhere.

        Without `is_uniform` they do, after all levels but the finest.
        """
        dimensions = len(self._edges)
        intervals, doublings = _coarsest_grid(self._budget, dimensions)
        self._add(_rough_points(intervals, dimensions))
        self._publish()
        while True:
            self._add(_grid_points(intervals, dimensions))
            if not np.isfinite(self._losses).any():
                self._publish()
                return False
            # Every second point, as the fields of one colour of a chessboard, predicts the others.
            is_black = np.rint(self._units * intervals).sum(1) % 2 == 0
            errors = self._errors(is_black, _ANYWHERE)
            self._choose(errors)
            is_grid = is_uniform and bool(np.isfinite(self._losses).all())
            if is_grid and self._tolerance and intervals >= MIN_TRUSTED_INTERVALS:
                self._predict_centres(intervals, stride=2)
                if self._is_accurate():
                    return False
                is_grid = bool(np.isfinite(self._losses).all())
            doublings -= 1
            if not doublings:
                break
            intervals *= 2
        if not is_grid or self._is_local(errors):
            return self._leave_grid(errors)
        errors = self._predict_centres(intervals, stride=1)
        if self._is_local(errors) or not np.isfinite(self._losses).all():
            return self._leave_grid(errors)
        self._add(_grid_points(2 * intervals, dimensions))
        kinds = _ON_GRID if np.isfinite(self._losses).all() else _ANYWHERE
        errors = self._errors(_is_on_grid(self._units, intervals), kinds)
        self._intervals = 2 * intervals
        self._choose({kind: _GRID_GAIN[kind] * errors[kind] for kind in kinds})
        return False

    def _predict_centres(self, intervals: int, *, stride: int) -> dict[Interpolation, Array]:
        """Evaluate centres of cells, and return the errors by which the grid predicts them."""
        self._add(_centres(intervals, len(self._edges), stride))
        kinds = _ON_GRID if np.isfinite(self._losses).all() else _ANYWHERE
        errors = self._errors(_is_on_grid(self._units, intervals), kinds)
        self._intervals = intervals
        self._choose(errors)
        return errors

    def _leave_grid(self, errors: Mapping[Interpolation, Array]) -> bool:
        """Go on with triangles, which have the points between those of the grid too; True."""
        self._choose({kind: errors[kind] for kind in _ANYWHERE})
        return True

    def _is_accurate(self) -> bool:
        """Whether the error that is estimated is within the tolerance, or that of rounding."""
        finite = self._losses[np.isfinite(self._losses)]
        scale = float(np.median(finite) - finite.min())
        rounding = _ROUNDING * float(np.abs(finite).max())
        return self._error <= max(TOLERANCE_MARGIN * self._tolerance * scale, rounding)

    def refine(self, density: Callable[[Point], float] | None) -> None:
        """Divide the triangles or intervals where the interpolation is worst, in waves."""
        size = max(_MIN_WAVE, (self._budget - len(self._units)) // WAVES)
        recent: deque[dict[Interpolation, Array]] = deque(maxlen=_RECENT_WAVES)
        while (left := self._budget - len(self._units)) > 0:
            new = _divisions(self._units, self._losses)
            if density is not None:
                new.weights[:] *= [self._density(density, unit) for unit in new.units]
            order = np.argsort(-new.weights, kind="stable")[: min(size, left)]
            # Two triangles are divided at the edge that they share.
            first = np.unique(new.units[order].round(12), axis=0, return_index=True)[1]
            chosen = [index for index in order[first] if new.weights[index] > 0]
            if not chosen:
                break
            self._add(new.units[chosen])
            actual = self._losses[-len(chosen) :]
            recent.append(
                {kind: np.abs(new.predicted[kind][chosen] - actual) for kind in _ANYWHERE}
            )
            errors = {kind: np.concatenate([each[kind] for each in recent]) for kind in _ANYWHERE}
            self._choose(errors)
            if self._tolerance and len(recent) == _RECENT_WAVES and self._is_accurate():
                break

    def _add(self, units: Array) -> None:
        """Evaluate those points that are not sampled yet, unless they are known."""
        units = units[[self._point(unit) not in self._points for unit in units]]
        points = [self._point(unit) for unit in units]
        losses = {point: float(self._known[point]) for point in points if point in self._known}
        missing = [point for point in points if point not in losses]
        for start in range(0, len(missing), self._batch_size):
            batch = missing[start : start + self._batch_size]
            found = [float(loss) for loss in self._evaluate(batch)]
            if len(found) != len(batch):
                raise ValueError(f"evaluate returned {len(found)} losses for {len(batch)} points")
            losses.update(zip(batch, found, strict=True))
        values = np.array([losses[point] for point in points])
        self._points.update(zip(points, values.tolist(), strict=True))
        self._units = np.vstack([self._units, units])
        self._losses = np.append(self._losses, _with_holes(values))

    def _density(self, density: Callable[[Point], float], unit: Array) -> float:
        point = self._point(unit)
        weight = float(density(point))
        if not (isfinite(weight) and weight > 0):
            raise ValueError(f"density of {point} is {weight}: it must be positive")
        return weight

    def _point(self, unit: Array) -> Point:
        return tuple(
            low + (high - low) * share
            for (low, high), share in zip(self._edges, unit.tolist(), strict=True)
        )

    def _errors(
        self, is_known: NDArray[np.bool_], kinds: Sequence[Interpolation]
    ) -> dict[Interpolation, Array]:
        """Errors by which the known points predict the others, largest first; without holes."""
        wanted, actual = self._units[~is_known], self._losses[~is_known]
        errors: dict[Interpolation, Array] = {}
        for kind in kinds:
            known, losses = self._units[is_known], self._losses[is_known]
            found = np.abs(_with_gaps(kind, known, losses, hole_share=0.0)(wanted) - actual)
            errors[kind] = np.sort(found[np.isfinite(found)])[::-1]
        return errors

    def _is_local(self, errors: Mapping[Interpolation, Array]) -> bool:
        """Whether the surface is predicted badly, but only in a small part."""
        linear = errors["linear"]
        if len(linear) < _MIN_TESTED or linear[0] <= _ROUNDING * np.nanmax(np.abs(self._losses)):
            return False
        elsewhere = linear[int(LOCAL_SHARE * len(linear))]
        is_resolved = any(
            errors[kind].max(initial=0.0) <= share * linear[0]
            for kind, share in RESOLVED.items()
            if kind in errors
        )
        return bool(elsewhere <= WELL_PREDICTED * linear[0] and not is_resolved)

    def _choose(self, errors: Mapping[Interpolation, Array]) -> None:
        """Use the interpolation with the smallest maximal error, and show the surface."""
        largest = {
            kind: float(each[np.isfinite(each)].max(initial=0.0)) for kind, each in errors.items()
        }
        self._interpolation = min(largest, key=lambda kind: largest[kind])
        self._error = largest[self._interpolation]
        self._publish()

    def _publish(self) -> None:
        if self._on_points is not None and len(self._points) > self._published:
            self._published = len(self._points)
            self._on_points(self.surface())


def _coarsest_grid(budget: int, dimensions: int) -> tuple[int, int]:
    """The intervals of the coarsest grid along an axis, and how often it can be halved, at least
    once.
    """
    finest = int(budget ** (1 / dimensions) + 1e-9) - 1
    doublings = 1
    while finest >> doublings + 1 >= MIN_TRUSTED_INTERVALS:
        doublings += 1
    return finest >> doublings, doublings


def _grid_points(intervals: int, dimensions: int) -> Array:
    """The points of a grid in the unit interval or square."""
    # Not linspace, whose points of a finer grid would differ by rounding.
    return _product(np.arange(intervals + 1.0) / intervals, dimensions)


def _rough_points(intervals: int, dimensions: int) -> Array:
    """A few points of that grid, evenly spread: at most 6 along an axis."""
    step = -(-intervals // 5)
    few = np.array([*range(0, intervals - step + 1, step), intervals])
    return _product(few / intervals, dimensions)


def _centres(intervals: int, dimensions: int, stride: int) -> Array:
    """The centres of the cells of a grid; with a stride of 2 of every second, as a chessboard."""
    cells = _product(np.arange(float(intervals)), dimensions)
    chosen: Array = cells[cells.sum(1) % stride == 0]
    return (2 * chosen + 1) / (2 * intervals)


def _product(values: Array, dimensions: int) -> Array:
    """All points whose coordinates are among the values."""
    axes = np.meshgrid(*[values] * dimensions, indexing="ij")
    return np.column_stack([axis.ravel() for axis in axes])


def _is_on_grid(units: Array, intervals: int) -> NDArray[np.bool_]:
    """Which points are points of that grid."""
    places = units * intervals
    found: NDArray[np.bool_] = np.all(np.abs(places - np.rint(places)) < 1e-6, axis=1)
    return found


class _Divisions(NamedTuple):
    """A new point in each triangle or interval, how much it is needed, and its expected loss."""

    units: Array
    weights: Array
    predicted: dict[Interpolation, Array]


def _divisions(units: Array, losses: Array) -> _Divisions:
    """Where to divide the triangles or intervals between the points.

    The weight is the deviation of the corners from each other's tangent planes, as a share of the
    range of the losses, with a power of the area. Nothing is expected (NaN) next to holes.
    """
    finite = np.flatnonzero(np.isfinite(losses))
    span = float(np.ptp(losses[finite])) or 1.0
    values = np.nan_to_num(losses) / span
    slopes = np.zeros_like(units)
    if units.shape[1] == 1:
        order = np.argsort(units[:, 0])
        corners = np.column_stack([order[:-1], order[1:]])
        shares = np.full(corners.shape, 1 / 2)
        edge = area = np.diff(units[order, 0])
        size = area ** (2 * SIZE_EXPONENT)
        if len(finite) > 1:
            known = order[np.isfinite(losses[order])]
            curve = Akima1DInterpolator(units[known, 0], values[known], method="makima")
            slopes[known, 0] = curve(units[known, 0], nu=1)
    else:
        corners = Delaunay(units).simplices
        shares, edge, area = _triangle_divisions(units[corners])
        size = area**SIZE_EXPONENT
        with suppress(QhullError, ValueError):
            surface = CloughTocher2DInterpolator(units[finite], values[finite])
            slopes[finite] = surface.grad.reshape(-1, 2)
    at, slope = units[corners], slopes[corners]
    offsets = at[:, None] - at[:, :, None]
    planes = values[corners][:, :, None] + (offsets * slope[:, :, None]).sum(-1)
    deviation = np.abs(planes - values[corners][:, None]).max(2).sum(1)
    holes = np.isnan(losses)[corners].sum(1)
    # The edge of a hole is as a cliff of the whole range.
    deviation[holes > 0] = 1.0
    weights = deviation * size + AREA_WEIGHT * area
    weights[edge < np.where(holes > 0, MIN_HOLE_EDGE, MIN_EDGE)] = 0.0
    weights[holes == corners.shape[1]] = 0.0
    middles = (shares[:, :, None] * at).sum(1)
    linear = (shares * losses[corners]).sum(1)
    # The cubic through the values and slopes of the corners, at a middle.
    bend = (shares * ((middles[:, None] - at) * slope).sum(2)).sum(1) * span / 2
    return _Divisions(middles, weights, {"linear": linear, "cubic": linear + bend})


def _triangle_divisions(triangles: Array) -> tuple[Array, Array, Array]:
    """Shares of the corners in the point that divides each, its longest edge, and its area."""
    first, second = triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]
    area = np.abs(first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]) / 2
    edges = np.linalg.norm(triangles - np.roll(triangles, 1, axis=1), axis=2)
    longest, rows = edges.argmax(1), np.arange(len(triangles))
    edge = edges[rows, longest]
    thin = np.flatnonzero(edge**2 > MAX_EDGE_RATIO * area)
    shares = np.full(triangles.shape[:2], 1 / 3)
    shares[thin] = 0.0
    shares[thin, longest[thin]] = shares[thin, longest[thin] - 1] = 1 / 2
    return shares, edge, area


def _with_gaps(
    kind: Interpolation, units: Array, losses: Array, hole_share: float = 0.5
) -> Interpolator:
    """A function of an array of points; NaN outside of the points, and in holes.

    A triangle of which some corners are in a hole is divided at that share.
    """
    is_hole = np.isnan(losses)
    if is_hole.all() or len(units) <= units.shape[1]:
        return lambda wanted: np.full(len(wanted), nan)
    function = _interpolator(kind, units[~is_hole], losses[~is_hole])
    if not is_hole.any():
        return function
    share = _interpolator("linear", units, is_hole.astype(float))

    def values(wanted: Array) -> Array:
        found: Array = np.array(function(wanted))
        found[share(wanted) > hole_share] = nan
        return found

    return values


def _interpolator(kind: Interpolation, units: Array, values: Array) -> Interpolator:
    """A function of an array of points; NaN outside of the points."""
    if units.shape[1] == 1:
        return _curve(kind, units, values)
    if kind == "spline":
        order, side = np.lexsort((units[:, 1], units[:, 0])), isqrt(len(units))
        axis, degree = units[order[::side], 0], min(3, side - 1)
        rows = values[order].reshape(side, side)
        spline = RectBivariateSpline(axis, axis, rows, kx=degree, ky=degree, s=0)
        # Beyond its bounds it would be constant.
        return lambda wanted: np.where(
            ((wanted >= axis[0]) & (wanted <= axis[-1])).all(1),
            spline.ev(wanted[:, 0], wanted[:, 1]),
            nan,
        )
    try:
        mesh = _triangulate(units)
    except (QhullError, ValueError):
        # Too few points between holes for a triangle.
        return cast("Interpolator", NearestNDInterpolator(units, values))
    if kind == "linear":
        return cast("Interpolator", LinearNDInterpolator(mesh, values))
    return cast("Interpolator", CloughTocher2DInterpolator(mesh, values))


def _triangulate(units: Array) -> Delaunay:
    """The triangulation, with the matrices by which points are located in it.

    Scipy calculates them by a call of LAPACK for each triangle, which takes 50 times as long if
    the library has several threads and the processors are busy with training.
    """
    mesh = Delaunay(units)
    if getattr(mesh, "_transform", 0) is None:
        corners = units[mesh.simplices]
        (a, c), (b, d) = (corners[:, :2] - corners[:, 2:]).transpose(1, 2, 0)
        determinant = a * d - b * c
        flat = np.abs(determinant) <= 1e-12 * np.abs(corners).max() ** 2
        determinant = np.where(flat, nan, determinant)
        inverse = np.array([[d, -b], [-c, a]]) / determinant
        matrices = np.concatenate([inverse.transpose(2, 0, 1), corners[:, 2:]], axis=1)
        mesh._transform = np.ascontiguousarray(matrices)  # noqa: SLF001 - as `transform` does
    return mesh


def _curve(kind: Interpolation, units: Array, values: Array) -> Interpolator:
    """`_interpolator` in one dimension."""
    order = np.argsort(units[:, 0])
    x, y = units[order, 0], values[order]
    if kind == "linear" or len(x) < _MIN_CUBIC:
        return lambda wanted: np.interp(wanted[:, 0], x, y, left=nan, right=nan)
    if kind == "cubic":
        return lambda wanted: Akima1DInterpolator(x, y, method="makima")(wanted[:, 0])
    return lambda wanted: CubicSpline(x, y, extrapolate=False)(wanted[:, 0])


def _with_holes(losses: Array) -> Array:
    """The losses, with NaN for those that are too large to calculate with."""
    return np.where(np.abs(losses) < MAX_FINITE_LOSS, losses, nan)


def _checked_bounds(bounds: Bounds) -> tuple[tuple[float, float], ...]:
    edges = tuple((float(low), float(high)) for low, high in bounds)
    if len(edges) not in MIN_EVALUATIONS:
        raise ValueError(f"bounds has {len(edges)} pairs: a surface has one or two dimensions")
    for low, high in edges:
        if not (isfinite(low) and isfinite(high) and low < high):
            raise ValueError(f"bounds ({low}, {high}): the first must be less than the second")
    return edges
