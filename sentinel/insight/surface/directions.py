"""Directions in weight space along which a loss surface is drawn.

A direction is the displacement of the weights at the coordinate 1, which depends on the kind:

| kind | at 1 |
|---|---|
| random | each filter has moved by its own norm (Li et al. 2018) |
| checkpoint | the weights are those of the checkpoint (Goodfellow et al. 2015) |
| pca | as far as the checkpoint that is farthest along this axis, which is at 1 or -1 |
| hessian | the quadratic model has risen by the loss at the centre |
| gradient | the linear model has fallen by the loss at the centre |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sentinel.insight.measure.evaluation import Evaluator
from sentinel.insight.measure.hessian import leading_eigenpairs
from sentinel.insight.measure.parameters import plain_name
from sentinel.insight.measure.surface_error import SurfaceError
from sentinel.insight.measure.weight_space import Vector, WeightSpace
from sentinel.insight.trajectory.principal_directions import principal_directions
from sentinel.insight.trajectory.saved_weights import find_checkpoints, open_weights

if TYPE_CHECKING:
    import torch

KINDS = ("random", "hessian", "pca", "gradient")
MAX_SNAPSHOTS = 200
"""Checkpoints of a trajectory that are read; of more, these many are chosen at equal distances."""


@dataclass(frozen=True, slots=True)
class Direction:
    """A displacement of weights: a whole tensor for each parameter, by name.

    Parameters that are not named do not move.
    """

    tensors: Mapping[str, torch.Tensor]
    name: str = ""


@dataclass(frozen=True, slots=True)
class PlacedDirection:
    """A direction in the space of the selected weights."""

    vector: Vector
    name: str
    kind: str
    eigenvalue: float | None = None
    """Of the Hessian, for the kind hessian."""
    explained: float | None = None
    """Share of the variance of the trajectory along this axis, for the kind pca."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Weights of a training at one step."""

    weights: Any
    """A path, a state dict or a model."""
    step: int | None = None


def make_directions(  # noqa: PLR0913 - keyword arguments
    spec: Any,
    dimensions: int,
    evaluator: Evaluator,
    *,
    seed: int = 0,
    snapshots: Sequence[Snapshot] = (),
    center_loss: float = 0.0,
) -> list[PlacedDirection]:
    """The directions that `loss_surface` describes, as many as there are dimensions.

    Raises SurfaceError if the description is none of these, or if the directions are parallel.
    """
    space = evaluator.space
    if isinstance(spec, str) and spec in KINDS:
        if spec == "random":
            found = [_random(space, seed + axis) for axis in range(dimensions)]
        elif spec == "hessian":
            found = _hessian(evaluator, dimensions, seed, center_loss)
        elif spec == "pca":
            found = _principal(space, snapshots, dimensions)
        else:
            found = _gradient(evaluator, dimensions, seed, center_loss)
    elif isinstance(spec, Sequence) and not isinstance(spec, str | bytes) and spec:
        if len(spec) > dimensions:
            raise SurfaceError(
                f"There are {len(spec)} directions and {dimensions} dimensions: give one for each."
            )
        found = [_explicit(space, each, index) for index, each in enumerate(spec)]
        if len(found) < dimensions:
            found.append(_random_beside(space, found[0], seed))
    else:
        raise SurfaceError(
            f"`directions` must be one of {', '.join(KINDS)}, or a list of checkpoints or of "
            f"Direction, not {spec!r:.80}."
        )
    _check(space, found)
    return found


def read_weights(space: WeightSpace, weights: Any) -> Vector:
    """The selected weights of a checkpoint: a path, a state dict or a model.

    Raises SurfaceError or CheckpointError if one is missing, of another shape or unreadable.
    """
    import torch  # noqa: PLC0415 - slow to import

    saved = open_weights(weights)
    tensors = {}
    for name, parameter in zip(space.names, space.parameters, strict=True):
        tensor = torch.empty(saved.shape(name), dtype=torch.float64)
        if tuple(tensor.shape) != tuple(parameter.shape):
            raise SurfaceError(
                f"{name} is {list(tensor.shape)} in {saved.name} and {list(parameter.shape)} in "
                "the model: give checkpoints of this model."
            )
        flat = tensor.reshape(-1)
        for _, start, piece in saved.pieces([name]):
            flat[start : start + piece.numel()] = piece.to(device="cpu", dtype=torch.float64)
        tensors[name] = tensor
    return space.from_full(tensors)


def as_snapshots(trajectory: Any) -> list[Snapshot]:
    """The snapshots of a trajectory, evenly thinned to `MAX_SNAPSHOTS`.

    A trajectory is a folder of checkpoints, or a list of paths, state dicts, models, `Snapshot` or
    pairs (step, weights).
    """
    if trajectory is None:
        return []
    if isinstance(trajectory, str | Path):
        trajectory = find_checkpoints(trajectory)
    if hasattr(trajectory, "projection"):
        raise SurfaceError(
            f"A {type(trajectory).__name__} has random projections of the weights, and a surface "
            "needs the weights: save checkpoints while training, and give their folder as "
            "`trajectory`. sentinel.insight.trajectory(recorder) draws the path without a surface."
        )
    if not isinstance(trajectory, Sequence):
        raise SurfaceError(
            "`trajectory` must be a folder of checkpoints or a list of them, not "
            f"{type(trajectory).__name__}."
        )
    found = []
    for each in trajectory:
        if isinstance(each, Snapshot):
            found.append(each)
        elif isinstance(each, tuple) and len(each) == 2:
            found.append(Snapshot(each[1], int(each[0])))
        else:
            step = open_weights(each).step if isinstance(each, str | Path) else None
            found.append(Snapshot(each, step))
    if len(found) > MAX_SNAPSHOTS:
        last = len(found) - 1
        found = [found[i * last // (MAX_SNAPSHOTS - 1)] for i in range(MAX_SNAPSHOTS)]
    return found


def project(space: WeightSpace, directions: Sequence[Vector], vector: Vector) -> list[float]:
    """Coordinates of the point of the plane that is nearest to a displacement.

    The directions need not be orthogonal.
    """
    products = [space.dot(direction, vector) for direction in directions]
    return [float(each) for each in np.linalg.solve(gram(space, directions), products)]


def gram(space: WeightSpace, directions: Sequence[Vector]) -> list[list[float]]:
    """The inner products of the directions with each other."""
    return [[space.dot(one, two) for two in directions] for one in directions]


def _random(space: WeightSpace, seed: int) -> PlacedDirection:
    vector = space.random(seed, normalise=True)
    if not space.norm(vector):
        raise SurfaceError(
            "Random directions are scaled to the norm of the weights, and all chosen weights are "
            "zero or vectors beside matrices: choose others with `parameters`."
        )
    return PlacedDirection(vector, f"random {seed}", "random")


def _random_beside(space: WeightSpace, first: PlacedDirection, seed: int) -> PlacedDirection:
    """A random direction orthogonal to the first one and of the same norm."""
    vector = space.random(seed, normalise=True)
    length = space.norm(first.vector)
    if length:
        share = space.dot(vector, first.vector) / length**2
        vector = space.difference(vector, space.scaled(first.vector, share))
        vector = space.scaled(vector, length / max(space.norm(vector), 1e-30))
    return PlacedDirection(vector, f"random {seed}", "random")


def _explicit(space: WeightSpace, item: Any, index: int) -> PlacedDirection:
    import torch  # noqa: PLC0415 - slow to import

    if isinstance(item, Direction):
        tensors = {plain_name(name): tensor for name, tensor in item.tensors.items()}
        unknown = [name for name in tensors if name not in space.names]
        if unknown:
            raise SurfaceError(
                f"The direction moves {unknown[0]}, which is not among the chosen weights, such as "
                f"{space.names[0]}: change `parameters` or the direction."
            )
        for name, parameter in zip(space.names, space.parameters, strict=True):
            if name not in tensors:
                tensors[name] = torch.zeros(tuple(parameter.shape))
        vector = space.from_full(tensors)
        return PlacedDirection(vector, item.name or f"direction {index + 1}", "explicit")
    vector = space.difference(read_weights(space, item), space.center)
    name = Path(item).name if isinstance(item, str | Path) else f"checkpoint {index + 1}"
    return PlacedDirection(vector, name, "checkpoint")


def _gradient(
    evaluator: Evaluator, dimensions: int, seed: int, center_loss: float
) -> list[PlacedDirection]:
    space = evaluator.space
    _, gradient = evaluator.gradient()
    norm = space.norm(gradient)
    if not norm or not isfinite(norm):
        raise SurfaceError(
            f"The gradient at the centre has the norm {norm:g}, and gives no direction: use "
            'directions="random" or "hessian".'
        )
    # Downhill to where the linear model reaches zero, as the step of Polyak (1987) for a minimum 0.
    reach = _length(space, abs(center_loss) / norm)
    first = PlacedDirection(space.scaled(gradient, -reach / norm), "negative gradient", "gradient")
    return [first, *([_random_beside(space, first, seed)] if dimensions == 2 else [])]


def _hessian(
    evaluator: Evaluator, dimensions: int, seed: int, center_loss: float
) -> list[PlacedDirection]:
    space = evaluator.space
    pairs = leading_eigenpairs(evaluator, dimensions, which="LM", seed=seed)
    found = []
    for index, (value, vector) in enumerate(pairs):
        reach = 1.0
        if value and center_loss:
            reach = (2 * abs(center_loss) / abs(value)) ** 0.5
        reach = _length(space, reach)
        name = f"eigenvector {index + 1} of the Hessian"
        scaled = space.scaled(vector, reach)
        found.append(PlacedDirection(scaled, name, "hessian", eigenvalue=value))
    return found


def _length(space: WeightSpace, wanted: float) -> float:
    """A length of at most the norm of the weights; 1 where it is not known."""
    norm = space.norm(space.center)
    if not wanted or not isfinite(wanted):
        return min(1.0, norm) if norm else 1.0
    return min(wanted, norm) if norm else wanted


def _principal(
    space: WeightSpace, snapshots: Sequence[Snapshot], dimensions: int
) -> list[PlacedDirection]:
    """Principal axes of the snapshots and the current weights (Li et al. 2018, section 7)."""
    if len(snapshots) < dimensions:
        raise SurfaceError(
            f'directions="pca" needs a `trajectory` of at least {dimensions} checkpoints; there '
            f"are {len(snapshots)}. Save checkpoints, or use other directions."
        )
    current = space.to_full(space.center)
    weights = [*(each.weights for each in snapshots), current]
    axes = principal_directions(
        weights, components=dimensions, parameters=space.names, center=current
    )
    if len(axes.directions) < dimensions:
        raise SurfaceError(
            "The checkpoints of the trajectory lie on a line or are equal, and span no plane: "
            "use dimensions=1, or more checkpoints."
        )
    found = []
    for axis, (tensors, explained) in enumerate(zip(axes.directions, axes.explained, strict=True)):
        # The checkpoint that is farthest along the axis is at 1 or -1: the axis itself points as
        # that of a trajectory does, from the start of the path to its end.
        farthest = max(abs(row[axis]) for row in axes.coordinates)
        vector = space.scaled(space.from_full(tensors), farthest or 1.0)
        name = f"principal axis {axis + 1} of the trajectory"
        found.append(PlacedDirection(vector, name, "pca", explained=explained))
    return found


def _check(space: WeightSpace, directions: Sequence[PlacedDirection]) -> None:
    norms = [space.norm(each.vector) for each in directions]
    for each, norm in zip(directions, norms, strict=True):
        if not norm or not isfinite(norm):
            raise SurfaceError(
                f"The direction {each.name} has the norm {norm:g}: it must move the weights. "
                "A checkpoint must differ from the current weights."
            )
    if len(directions) == 2:
        cosine = space.dot(directions[0].vector, directions[1].vector) / (norms[0] * norms[1])
        if abs(cosine) > 1 - 1e-6:
            raise SurfaceError(
                f"The directions {directions[0].name} and {directions[1].name} are parallel and "
                "span no plane: change one of them, or use dimensions=1."
            )
