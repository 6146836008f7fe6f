"""The loss around the weights of a model, along one or two directions in weight space.

The method is that of Li et al. 2018, "Visualizing the Loss Landscape of Neural Nets", and for lines
between checkpoints that of Goodfellow et al. 2015, "Qualitatively characterizing neural network
optimization problems".
"""

from __future__ import annotations

import hashlib
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor, inf, isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sentinel.client.session import CurrentSession
from sentinel.insight.measure.evaluation import Evaluator, LossFunction, Mode, digest_of
from sentinel.insight.measure.measurement import measuring
from sentinel.insight.measure.parameters import Selection, describe_selection
from sentinel.insight.measure.sharpness import measure_sharpness
from sentinel.insight.measure.surface_error import SurfaceError, UndefinedError
from sentinel.insight.measure.time_limit import OutOfTimeError
from sentinel.insight.result import Result
from sentinel.insight.surface.cache import SurfaceCache
from sentinel.insight.surface.directions import (
    PlacedDirection,
    Snapshot,
    as_snapshots,
    gram,
    make_directions,
    project,
    read_weights,
)
from sentinel.insight.surface.features import find_features
from sentinel.insight.surface.progress import ShownProgress, SurfaceProgress
from sentinel.insight.surface.sampling import SampledSurface, sample_surface
from sentinel.model.json_safe import finite_values
from sentinel.signals.framework_config import short_model_name
from sentinel.store.artifact import current_run_directory, save_artifact

if TYPE_CHECKING:
    from torch import nn

Directions = str | Sequence[Any]
Progress = Literal["auto"] | Callable[[SurfaceProgress], None] | None

EVALUATIONS_2D = 33 * 33
EVALUATIONS_1D = 49
TOLERANCE = 1e-3
"""Error at which a surface is done, as a share of the median loss above the lowest one."""
GRID_2D, GRID_1D = 101, 201
"""Points of the displayed grid along an axis."""
ARROWS = 7
"""Arrows along an axis."""
_POINTS_PER_RANK = 4
"""Points that a rank evaluates between two exchanges."""
_SAVE_SECONDS = 5.0
"""How often an unfinished surface is stored with the run."""
_GRADIENT_COST = 3.0
"""A gradient takes about as long as this many evaluations."""
PATH_MARGIN = 0.25
"""By default a surface in the plane of a path ends so far from it, as a share of its extent."""
_REGION_INTERVALS = 8
"""The corners of a region are on a grid of so many intervals of its size, as points are."""
MAX_REGIONS = 8
"""Finer regions of a surface, the newest."""


@dataclass(frozen=True, slots=True)
class LossSurface(Result):
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
    """For each direction `name`, `kind`, `norm` (L2, of the displacement at the coordinate 1),
    `eigenvalue` (of the Hessian, or None) and `explained` (share of the variance of the trajectory,
    or None)."""
    center: dict[str, Any]
    """`x`, `y` and `loss` of the weights themselves."""
    trajectory: list[dict[str, Any]] = field(default_factory=list)
    """Checkpoints projected onto the plane: `step`, `x`, `y` and `loss`, which is that of the
    checkpoint itself, not of the point below it in the plane."""
    arrows: list[list[float]] = field(default_factory=list)
    """The negative gradient projected onto the plane, on a coarse grid: x, y, dx, dy."""
    features: list[dict[str, Any]] = field(default_factory=list)
    """Minima, saddles and maxima: `kind`, `x`, `y`, `loss`, `depth`, and `evaluated`: whether the
    loss was evaluated there, and not interpolated."""
    regions: list[dict[str, Any]] = field(default_factory=list)
    """Parts that were sampled more finely, see `refine`: `x`, `y` and `loss` as above."""
    sharpness: dict[str, Any] | None = None
    """Curvature at the centre, see `Sharpness`; None if it was not measured."""
    evaluations: int = 0
    seconds: float = 0.0
    estimated_error: float | None = None
    """The largest error that the interpolation is expected to have; None where unknown."""
    parameter_count: int = 0
    """Number of weights that the directions change."""
    weights_norm: float | None = None
    """L2 norm of these weights at the centre."""
    selection: str = ""
    """Which weights these are, in words."""
    step: int | None = None
    model: str = ""
    note: list[str] = field(default_factory=list)
    """What a reader of the picture should know, one sentence each."""
    name: str = ""
    kind: str = "loss_surface"


def loss_surface(  # noqa: PLR0913 - keyword arguments with defaults
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Any,
    *,
    directions: Directions = "random",
    bounds: tuple[float, float] | Sequence[tuple[float, float]] | None = None,
    dimensions: int = 2,
    max_evaluations: int | None = None,
    tolerance: float = TOLERANCE,
    parameters: Selection = None,
    seed: int = 0,
    trajectory: Any = None,
    optimizer: Any = None,
    cache: bool | str | Path = True,
    progress: Progress = "auto",
    process_group: Any = None,
    save: bool = True,
    name: str = "",
    arrows: bool = True,
    mode: Mode = "eval",
    density: Callable[[tuple[float, ...]], float] | None = None,
    step: int | None = None,
    timeout: float | None = None,
    max_seconds: float | None = None,
    refine: LossSurface | None = None,
) -> LossSurface:
    """Evaluate the loss on a line or a plane through the current weights of a model.

    The model, its gradients and all random number generators are given back bit-exactly, after an
    error or Ctrl-C too; see `preserved`.

    `loss_fn(model, batch)` returns the loss as a tensor of one element, or a tuple that begins with
    it. `batch` is one batch, or a list of batches (dicts, tuples or lists), whose mean is weighted
    by their sizes.

    `directions` is "random" (filter-normalised), "hessian" (leading eigenvectors), "pca" (of
    `trajectory`), "gradient", or a list of checkpoints (paths, state dicts, models) or of
    `Direction`. `bounds` are those of the coordinates, one pair or one for each dimension: by
    default -1 to 1, and for "pca" the path with a quarter of its extent on either side. What the
    coordinate 1 means is in `sentinel.insight.surface.directions`.

    The loss is evaluated at `max_evaluations` points at most, and at fewer if the interpolation
    between them is expected to be within `tolerance`, a share of the median loss above the lowest
    one; with 0 all are used. What is narrower than the distance of the points may be missed.

    `refine` is an earlier result for the same weights, directions and data. `bounds` are then a
    part of it, which is rounded outwards so that points coincide, and sampled by itself. The result
    is the earlier one with that part in `regions`.

    `parameters` are the weights that move: None for those that require a gradient, a pattern such
    as "*lora*", a list of names, or a predicate of name and parameter. `trajectory` is a folder or
    a list of checkpoints, which are projected onto the plane. With `optimizer`, the result has the
    sharpness and its limit of stability.

    The modules are in eval mode, so that the loss is the same at each evaluation; with
    `mode="train"` dropout draws the same mask each time, and batch norm uses the batch.

    With DDP, ranks that hold the same batch evaluate different points. With FSDP2, and with
    different batches, each point is evaluated by all ranks, and the loss is that of all their data.
    Every rank must call it with the same arguments, and all get the result. For a model
    without a wrapper, `process_group` shares the points of that group, True of all ranks; False
    uses one rank alone.
    A rank that does not answer within `timeout` seconds (by default two minutes more than ten times
    what this rank needed) is an error.

    `cache` stores the points on disk, so that a surface that was interrupted is continued; a path
    is its folder. `progress` "auto" shows a bar on a terminal and one line elsewhere, a function is
    called with `SurfaceProgress`, None is silent. `save` stores the result with the run that is
    monitored in this process, if there is one, and a coarse picture while it is computed; `step` is
    that of the run by default. `density` makes sampling denser where it is larger. After
    `max_seconds` the surface is what was sampled until then, at least a few points, and what else
    takes time is left out, which a note states.

    Raises SurfaceError if the surface cannot be computed: the batch does not fit in memory, a rank
    is lost, the directions span no plane. Errors of `loss_fn` are raised as they are. ValueError
    and TypeError if an argument has no valid value.
    """
    started = time.monotonic()
    if dimensions not in {1, 2}:
        raise ValueError(f"`dimensions` must be 1 or 2, not {dimensions!r}.")
    pairs = None if bounds is None else _bounds(bounds, dimensions)
    if not 0.0 <= tolerance < inf:
        raise ValueError(f"`tolerance` must be a share of at least 0, not {tolerance!r}.")
    if refine is not None:
        pairs = _region(refine, pairs, dimensions)
    budget = _budget(max_evaluations, dimensions)
    snapshots = as_snapshots(trajectory)
    described = {
        "selection": describe_selection(parameters),
        "step": _current_step() if step is None else step,
        "model": _model_name(model),
        "name": name,
    }
    with measuring(model, parameters, process_group, timeout) as (space, exchange):
        exchange.require_equal(
            directions=directions if isinstance(directions, str) else "given",
            bounds=pairs,
            max_evaluations=budget,
            tolerance=tolerance,
            seed=seed,
            arrows=arrows,
            mode=mode,
        )
        evaluator = Evaluator(
            model,
            loss_fn,
            batch,
            space,
            exchange=exchange,
            mode=mode,
            seed=seed,
            max_seconds=max_seconds,
        )
        directory = current_run_directory() if save and exchange.rank == 0 else None
        work = _Surface(evaluator, dimensions, budget, directory, described)
        work.measure_center()
        work.choose_directions(directions, snapshots, seed)
        work.choose_bounds(pairs, snapshots if directions == "pca" else ())
        if refine is not None:
            work.take_points(refine)
        key = work.cache_key(loss_fn, mode, seed) if cache is not False else None
        work.open_cache(key, None if isinstance(cache, bool) else Path(cache))
        has_arrows = arrows and dimensions == 2 and refine is None
        work.sample(progress, density, tolerance, arrows=has_arrows)
        features = work.features()
        path = work.project_trajectory(snapshots) if refine is None else []
        field_of_arrows = work.arrows() if has_arrows else []
        curvature = None if optimizer is None else work.sharpness(optimizer, seed)
    result = replace(
        work.picture(work.surface),
        trajectory=path,
        arrows=field_of_arrows,
        features=features,
        sharpness=curvature,
        seconds=time.monotonic() - started,
    )
    if refine is not None:
        result = _with_region(refine, result)
    if directory is not None:
        save_artifact(directory, result)
    return result


class _Surface:
    """The parts of a loss surface while they are computed, on one rank."""

    def __init__(
        self,
        evaluator: Evaluator,
        dimensions: int,
        budget: int,
        directory: Path | None,
        described: dict[str, Any],
    ) -> None:
        self.evaluator, self.dimensions, self.budget = evaluator, dimensions, budget
        self.bounds: list[tuple[float, float]] = []
        self._directory, self._described = directory, described
        self._started = self._saved = time.monotonic()
        self.exchange, self.space = evaluator.exchange, evaluator.space
        self.notes: list[str] = []
        self.evaluations = 0
        self.center_loss = 0.0
        self.placed: list[PlacedDirection] = []
        self._known: dict[tuple[float, ...], float] = {}
        self._between: dict[tuple[float, ...], float] = {}
        """Losses that were evaluated between the points of the surface."""
        self._coinciding: dict[tuple[int, ...], float] = {}
        """Losses of the surface that is refined, by the place in the bounds."""
        self._cache: SurfaceCache | None = None
        self._seconds_each = 0.0

    def picture(self, surface: SampledSurface) -> LossSurface:
        """The result as far as a surface is sampled."""
        x, y, rows = self._grid(surface)
        points = surface.points | self._between
        # No interpolation is below what was evaluated.
        lowest = min((each for each in points.values() if isfinite(each)), default=-inf)
        rows = [[max(each, lowest) if isfinite(each) else each for each in row] for row in rows]
        return LossSurface(
            x=x,
            y=y,
            loss=finite_values(rows),
            points=[[*_two(point), finite_values(loss)] for point, loss in points.items()],
            directions=self._directions,
            center={"x": 0.0, "y": 0.0, "loss": finite_values(self.center_loss)},
            evaluations=self.evaluations,
            seconds=time.monotonic() - self._started,
            estimated_error=finite_values(surface.estimated_error),
            parameter_count=self.space.size,
            weights_norm=self._weights_norm,
            note=[*dict.fromkeys([*self.notes, *self.evaluator.notes])],
            **self._described,
        )

    def measure_center(self) -> None:
        """Evaluate the centre twice: its loss, whether it repeats, and how long it takes."""
        self._weights_norm = self.space.norm(self.space.center)
        if not isfinite(self._weights_norm):
            raise SurfaceError(
                "The weights hold NaN or infinite values, around which there is no surface: give "
                "the last checkpoint without them."
            )
        first = self.evaluator.mean_loss()
        started = time.monotonic()
        second = self.evaluator.mean_loss()
        seconds = time.monotonic() - started
        # The slowest rank decides.
        self._seconds_each = max(self.exchange.gather(seconds))
        self.evaluations += 2
        self.center_loss = first
        if first != second and not (isnan(first) and isnan(second)):
            self.notes.append(
                f"Two evaluations of the same weights gave {first:.6g} and {second:.6g}: the loss "
                "function is not deterministic, and the surface has this much noise."
            )
        if not isfinite(first):
            self.notes.append(f"The loss at the centre is {first}.")
        coarse = self.space.coarsest_dtype
        if coarse is not None:
            self.notes.append(
                f"Weights are {coarse}: displacements below the spacing of this type are lost, and "
                "the surface has steps."
            )

    def choose_directions(
        self, directions: Directions, snapshots: Sequence[Snapshot], seed: int
    ) -> None:
        """Build the directions, the same on every rank."""
        self.placed = make_directions(
            directions,
            self.dimensions,
            self.evaluator,
            seed=seed,
            snapshots=snapshots,
            center_loss=self.center_loss if isfinite(self.center_loss) else 0.0,
        )
        self._vectors = [each.vector for each in self.placed]
        self._directions = [
            {
                "name": each.name,
                "kind": each.kind,
                "norm": self.space.norm(each.vector),
                "eigenvalue": each.eigenvalue,
                "explained": each.explained,
            }
            for each in self.placed
        ]
        digests = [self.space.digest(each) for each in self._vectors]
        everyone = self.exchange.gather(digests)
        if not self.evaluator.is_sharded and any(each != everyone[0] for each in everyone):
            raise SurfaceError(
                "The ranks have different directions: call the function on every rank with the "
                "same arguments and the same checkpoints."
            )
        self._digests = everyone

    def choose_bounds(
        self, bounds: list[tuple[float, float]] | None, path: Sequence[Snapshot]
    ) -> None:
        """The bounds that are given, or those that hold the path with a margin."""
        if bounds is None and path:
            places = [(0.0,) * self.dimensions]
            for snapshot in path:
                weights = read_weights(self.space, snapshot.weights)
                moved = self.space.difference(weights, self.space.center)
                places.append(tuple(project(self.space, self._vectors, moved)))
            bounds = []
            for values in zip(*places, strict=True):
                margin = PATH_MARGIN * (max(values) - min(values))
                bounds.append((min(values) - margin, max(values) + margin))
        self.bounds = bounds or [(-1.0, 1.0)] * self.dimensions

    def take_points(self, refined: LossSurface) -> None:
        """Use the points of the surface that is refined. Raises SurfaceError for another one."""
        norms = [self.space.norm(each) for each in self._vectors]
        theirs = [each.get("norm") for each in refined.directions]
        loss = refined.center.get("loss")
        is_same = len(norms) == len(theirs) and all(
            isinstance(b, float) and abs(a - b) <= 1e-6 * a
            for a, b in zip(norms, theirs, strict=True)
        )
        if not is_same or loss is None or not _is_close(loss, self.center_loss):
            raise SurfaceError(
                "`refine` is a surface of other weights, directions or data: call loss_surface "
                "with the arguments of that surface, and other `bounds`."
            )
        for x, y, value in refined.points:
            if x is not None and y is not None and value is not None:
                self._coinciding[self._place((x, y)[: self.dimensions])] = value

    def _place(self, point: Sequence[float]) -> tuple[int, ...]:
        """A point, so that those that differ by rounding are equal."""
        pairs = zip(point, self.bounds, strict=True)
        return tuple(round((value - low) / (high - low) * 2**24) for value, (low, high) in pairs)

    def cache_key(self, loss_fn: LossFunction, mode: Mode, seed: int) -> str | None:
        """The key of the weights, the data, the directions and the loss function."""
        mine = [
            digest_of([*self.evaluator.model.parameters(), *self.evaluator.model.buffers()]),
            self.evaluator.data_digest,
            _digest_of_function(loss_fn),
        ]
        everyone = self.exchange.gather(mine)
        if any(None in each for each in everyone):
            self.notes.append(
                "The points are not cached: the batch holds objects other than tensors, arrays, "
                "texts and numbers."
            )
            return None
        text = repr((everyone, self._digests, mode, seed, self.dimensions))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def open_cache(self, key: str | None, folder: Path | None) -> None:
        """Read the points that are known, on rank 0 for all."""
        origin = (0.0,) * self.dimensions
        found: list[list[float]] = []
        if key is not None and self.exchange.rank == 0:
            self._cache = SurfaceCache(key, folder)
            known = self._cache.known()
            center = known.get(origin)
            if center is not None and not _is_close(center, self.center_loss):
                # The loss function does something else although its code and its data are equal.
                self._cache, known = None, {}
                self.notes.append("The points in the cache have other losses and are not used.")
            found = [[*point, loss] for point, loss in known.items()]
        found = self.exchange.gather(found)[0]
        self._known = {tuple(point): loss for *point, loss in found}
        if origin not in self._known:
            self._known[origin] = self.center_loss
            self._store({origin: self.center_loss})

    def sample(self, progress: Progress, density: Any, tolerance: float, *, arrows: bool) -> None:
        """Evaluate the surface."""
        ranks = self.exchange.size if self.evaluator.shares_points else 1
        gradients = _GRADIENT_COST * ARROWS**2 if arrows else 0.0
        seconds = self._seconds_each / ranks
        with ShownProgress(
            progress if self.exchange.rank == 0 else None,
            self.budget,
            seconds,
            gradients * seconds,
            ranks,
        ) as shown:
            evaluated: dict[tuple[float, ...], float] = {}

            def evaluate(points: Sequence[tuple[float, ...]]) -> list[float]:
                if shown.surface is not None and self.evaluator.time_limit.is_passed():
                    raise OutOfTimeError
                losses = self._evaluate(points)
                evaluated.update(zip(points, losses, strict=True))
                shown.add(len(points))
                return losses

            def show(surface: SampledSurface) -> None:
                shown.show(surface)
                self._save_coarse(surface)

            try:
                self.surface: SampledSurface = sample_surface(
                    evaluate,
                    self.bounds,
                    max_evaluations=self.budget,
                    batch_size=ranks * _POINTS_PER_RANK,
                    known=self._known,
                    on_points=show,
                    density=density,
                    tolerance=tolerance,
                )
            except OutOfTimeError:
                coarse = shown.surface
                if coarse is None:
                    raise
                self.surface = replace(coarse, points=coarse.points | evaluated)
                self.notes.append(
                    f"The time was over after {self.evaluations} of at most {self.budget} "
                    "evaluations: the surface is coarser than it could be."
                )
        if self._cache is not None and self._cache.problem is not None:
            self.notes.append(self._cache.problem)
        if len(set(self.surface.points.values())) == 1:
            self.notes.append(
                "The loss is the same everywhere: it does not depend on the chosen weights, such "
                "as those of LoRA adapters before their first step, whose product is zero."
            )
        bad = sum(not isfinite(loss) for loss in self.surface.points.values())
        if bad:
            count = len(self.surface.points)
            self.notes.append(f"The loss is NaN or infinite at {bad} of {count} points.")

    def features(self) -> list[dict[str, Any]]:
        """Minima, saddles and maxima, with losses that are evaluated there if time allows it."""
        grid = self._grid(self.surface)
        if self.evaluator.time_limit.is_passed():
            return find_features(self.surface, grid)
        found = find_features(self.surface, grid, self._evaluate_between)
        xs, ys, rows = grid
        losses = [
            (loss, (x, y)[: self.dimensions])
            for y, row in zip(ys or [0.0], rows, strict=True)
            for x, loss in zip(xs, row, strict=True)
            if isfinite(loss)
        ]
        if losses:
            self._evaluate_between([min(losses)[1]])
        return found

    def _grid(self, surface: SampledSurface) -> tuple[list[float], list[float], list[list[float]]]:
        return surface.grid(GRID_1D if self.dimensions == 1 else GRID_2D)

    def _evaluate_between(self, points: Sequence[tuple[float, ...]]) -> list[float]:
        """Losses at points beside those of the surface."""
        losses = self._evaluate(points)
        self._between |= dict(zip(points, losses, strict=True))
        return losses

    def _evaluate(self, points: Sequence[tuple[float, ...]]) -> list[float]:
        """Losses at these points, which are stored; those of the refined surface are known."""
        found = {each: self._coinciding.get(self._place(each)) for each in points}
        known = {each: loss for each, loss in found.items() if loss is not None} | self._known
        missing = [point for point in found if point not in known]
        losses = self.evaluator.losses(self._vectors, missing) if missing else []
        new = dict(zip(missing, losses, strict=True))
        self.evaluations += len(new)
        self._store(new)
        self._known |= new
        known |= new
        return [known[point] for point in points]

    def project_trajectory(self, snapshots: Iterable[Snapshot]) -> list[dict[str, Any]]:
        """Coordinates and losses of the checkpoints."""
        found: list[dict[str, Any]] = []
        for snapshot in snapshots:
            weights = read_weights(self.space, snapshot.weights)
            moved = self.space.difference(weights, self.space.center)
            coordinates = project(self.space, self._vectors, moved)
            loss = None
            if not self.evaluator.time_limit.is_passed():
                self.space.set_weights(weights)
                loss = finite_values(self.evaluator.mean_loss())
                self.evaluations += 1
            x, y = _two(coordinates)
            found.append({"step": snapshot.step, "x": x, "y": y, "loss": loss})
        self.space.move([], [])
        outside = sum(
            not all(low <= each[axis] <= high for axis, (low, high) in self._axes())
            for each in found
        )
        if outside:
            self.notes.append(
                f"{outside} of {len(found)} checkpoints of the path are beyond the bounds."
            )
        return found

    def _axes(self) -> Iterable[tuple[str, tuple[float, float]]]:
        return zip(("x", "y"), self.bounds, strict=False)

    def arrows(self) -> list[list[float]]:
        """The negative gradient projected onto the plane, on a grid inside the bounds."""
        if self.evaluator.time_limit.is_passed():
            self.notes.append("There are no arrows: the time was over.")
            return []
        axes = [
            [low + (high - low) * (i + 0.5) / ARROWS for i in range(ARROWS)]
            for low, high in self.bounds
        ]
        points = [(x, y) for y in axes[1] for x in axes[0]]
        try:
            slopes = self.evaluator.arrows(self._vectors, points)
        except UndefinedError as error:
            self.notes.append(f"There are no arrows: {error}")
            return []
        products = gram(self.space, self._vectors)
        found = []
        for (x, y), slope in zip(points, slopes, strict=True):
            if all(map(isfinite, slope)):
                dx, dy = np.linalg.solve(products, [-each for each in slope]).tolist()
                found.append([x, y, dx, dy])
        return found

    def sharpness(self, optimizer: Any, seed: int) -> dict[str, Any] | None:
        """The curvature at the centre; None, with a note, if it has none or time is over."""
        try:
            return measure_sharpness(self.evaluator, optimizer, seed=seed).to_json()
        except (UndefinedError, OutOfTimeError) as error:
            self.notes.append(f"There is no sharpness: {error}")
            return None

    def _save_coarse(self, surface: SampledSurface) -> None:
        """Store what is there, so that the page of the run shows it, if the rest takes long."""
        # Without a name and a step each would be a result of its own.
        is_named = self._described["name"] or self._described["step"] is not None
        if self._directory is None or not is_named:
            return
        now = time.monotonic()
        if now - self._saved > _SAVE_SECONDS:
            self._saved = now
            text = f"It is being computed: {self.evaluations} of at most {self.budget} evaluations."
            picture = self.picture(surface)
            save_artifact(self._directory, replace(picture, note=[text, *picture.note]))

    def _store(self, points: Mapping[tuple[float, ...], float]) -> None:
        if self._cache is not None:
            self._cache.append(points)


def _bounds(
    bounds: tuple[float, float] | Sequence[tuple[float, float]], dimensions: int
) -> list[tuple[float, float]]:
    pairs: Any = bounds
    if isinstance(pairs, Sequence) and pairs and isinstance(pairs[0], int | float):
        pairs = [bounds] * dimensions
    try:
        found = [(float(low), float(high)) for low, high in pairs]
    except (TypeError, ValueError):
        found = []
    if len(found) != dimensions or not all(-inf < low < high < inf for low, high in found):
        raise ValueError(
            "`bounds` must be a pair (low, high) with low < high, or one pair for each dimension, "
            f"not {bounds!r}."
        )
    return found


def _region(
    surface: LossSurface, bounds: Sequence[tuple[float, float]] | None, dimensions: int
) -> list[tuple[float, float]]:
    """The bounds rounded outwards, so that points of the region are points of the surface.

    Its size is that of the surface divided by a power of two. Raises ValueError, SurfaceError.
    """
    axes = [surface.x, *([surface.y] if surface.y else [])]
    if bounds is None or len(axes) != dimensions:
        raise ValueError(
            "`refine` needs the `bounds` of a region, and as many `dimensions` as that surface has."
        )
    found = []
    for (low, high), values in zip(bounds, axes, strict=True):
        start, whole = values[0], values[-1] - values[0]
        if not start <= low < high <= values[-1]:
            raise SurfaceError(
                f"`bounds` {low:g} to {high:g} are not within those of the surface, {start:g} to "
                f"{values[-1]:g}."
            )
        shares = ((low - start) / whole, (high - start) / whole)
        size = 1.0
        while True:
            first, last = _covering(shares, size / 2)
            if last < shares[1] - 1e-9:
                break
            size /= 2
            if size < 2.0**-20:
                raise SurfaceError(f"`bounds` {low:g} to {high:g} are too close to each other.")
        first, last = _covering(shares, size)
        found.append((start + first * whole, start + last * whole))
    return found


def _covering(shares: tuple[float, float], size: float) -> tuple[float, float]:
    """A part of that size, as a share, that begins at or before the first one."""
    grain = size / _REGION_INTERVALS
    first = min(floor(shares[0] / grain + 1e-9) * grain, 1.0 - size)
    return first, first + size


def _with_region(whole: LossSurface, part: LossSurface) -> LossSurface:
    """The surface with a part that was sampled by itself."""
    (left, right), (bottom, top) = (
        (axis[0], axis[-1]) if axis else (0.0, 0.0) for axis in (part.x, part.y)
    )
    features = [
        each
        for each in whole.features
        if not (left <= each["x"] <= right and bottom <= each["y"] <= top)
    ]
    points = {tuple(each[:2]): each for each in [*whole.points, *part.points]}
    region = {"x": part.x, "y": part.y, "loss": part.loss}
    return replace(
        whole,
        points=[*points.values()],
        features=[*features, *part.features],
        regions=[*whole.regions, region][-MAX_REGIONS:],
        evaluations=whole.evaluations + part.evaluations,
        seconds=whole.seconds + part.seconds,
        note=[*dict.fromkeys([*whole.note, *part.note])],
    )


def _budget(max_evaluations: int | None, dimensions: int) -> int:
    if max_evaluations is None:
        return EVALUATIONS_1D if dimensions == 1 else EVALUATIONS_2D
    least = 3**dimensions
    if isinstance(max_evaluations, bool) or not isinstance(max_evaluations, int):
        raise TypeError(f"`max_evaluations` must be a whole number, not {max_evaluations!r}.")
    if max_evaluations < least:
        raise ValueError(f"`max_evaluations` must be at least {least}, not {max_evaluations}.")
    return max_evaluations


def _two(point: Sequence[float]) -> list[float]:
    return [point[0], point[1] if len(point) > 1 else 0.0]


def _is_close(one: float, two: float) -> bool:
    return one == two or (isnan(one) and isnan(two)) or abs(one - two) <= 1e-6 * abs(one)


def _digest_of_function(function: Any) -> str | None:
    """A hash of the code of a function and of the values that it has captured, as far as known."""
    parts: list[Any] = [getattr(function, "__module__", ""), getattr(function, "__qualname__", "")]
    target = inspect.unwrap(function) if callable(function) else function
    while hasattr(target, "func"):  # functools.partial
        parts += [digest_of([target.args, target.keywords])]
        target = target.func
    code = getattr(target, "__code__", None)
    if code is not None:
        parts += [code.co_code.hex(), repr(code.co_names)]
        parts += [repr([each for each in code.co_consts if not hasattr(each, "co_code")])]
        cells = [each.cell_contents for each in target.__closure__ or () if _is_filled(each)]
        parts += [digest_of(each) for each in [*cells, *(target.__defaults__ or ())]]
    return digest_of([str(each) for each in parts])


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (raises if it is empty)
    except ValueError:
        return False
    return True


def _current_step() -> int | None:
    """The step of the run that is monitored in this process."""
    recorder = CurrentSession.recorder
    return None if recorder is None else recorder.clock.step


def _model_name(model: Any) -> str:
    """The name of a Hugging Face model, without the folders of a path, or that of the class."""
    inner = getattr(model, "module", model)
    named = getattr(getattr(inner, "config", None), "_name_or_path", "")
    return short_model_name(str(named)) if named else type(inner).__name__
