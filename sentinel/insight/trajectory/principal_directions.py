"""Principal directions of checkpoints in weight space, streamed from disk in bounded memory.

The covariance of n checkpoints with millions of weights has the eigenvalues of their n by n matrix
of inner products, and its eigenvectors are combinations of the checkpoints with the eigenvectors of
that matrix (the dual form of principal component analysis). Both are sums over pieces of the
weights, so all checkpoints are read twice, one piece at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sentinel.insight.measure.parameters import Selection, choose_names
from sentinel.insight.trajectory.saved_weights import (
    CheckpointError,
    SavedWeights,
    Source,
    common_names,
    open_weights,
    row_ranges,
)

if TYPE_CHECKING:
    import torch

Progress = Callable[[float], None]
Matrix = npt.NDArray[np.float64]

MAX_CHECKPOINTS = 400
"""Checkpoints that are compared at once: the work grows with the square of their number."""

_PIECE_BYTES = 64 << 20
"""Memory for the pieces of all checkpoints, as float64."""
_NO_VARIANCE = 1e-14
"""Share of the variance below which a direction is rounding error."""


@dataclass(frozen=True)
class PrincipalDirections:
    """Directions in weight space along which checkpoints differ most.

    `directions` are state dicts of CPU tensors, together of L2 norm 1 and orthogonal to each other;
    fewer than asked for if the checkpoints span fewer. `explained` is the share of the variance
    along each. `coordinates` has a row per checkpoint and a column per direction: its place
    relative to the center, in units of the weights. `steps` and `losses` are None where a
    checkpoint does not contain them.
    """

    directions: list[dict[str, torch.Tensor]]
    explained: list[float]
    coordinates: list[list[float]]
    steps: list[int | None]
    losses: list[float | None]


def principal_directions(
    checkpoints: Sequence[Source],
    *,
    components: int = 2,
    parameters: Selection = None,
    center: Source = None,
    progress: Progress | None = None,
) -> PrincipalDirections:
    """The principal components of checkpoints (paths, state dicts or modules) in weight space.

    `parameters` chooses weights by name (all floating-point ones that the checkpoints have in
    common). `center` is where coordinates are zero, such as the model whose surroundings are shown;
    the mean of the checkpoints by default. The directions are those of the variance around the
    mean in either case. Memory is that of `components` directions and 64 MiB.

    A random projection of the weights has no such directions: they need the weights themselves.
    Raises CheckpointError (a ValueError) if checkpoints cannot be read or compared.
    """
    opened = [open_weights(each) for each in checkpoints]
    if len(opened) < 2:
        raise CheckpointError(
            f"Principal directions need 2 checkpoints or more, not {len(opened)}."
        )
    everything = [*opened] if center is None else [*opened, open_weights(center)]
    names = choose_names(common_names(everything), parameters)
    report = progress or (lambda _: None)
    gram, _ = gram_matrix(everything, names, lambda done: report(done / 2))
    count = len(opened)
    _check_finite(gram, everything)
    weights = np.full(count, 1 / count)
    middle = gram[:count, :count] @ weights
    # Inner products of the differences to the mean.
    centered = gram[:count, :count] - middle[:, None] - middle[None, :] + weights @ middle
    values, vectors = _eigenvectors(centered)
    kept = min(components, int((values > _NO_VARIANCE * values.sum()).sum())) if len(values) else 0
    if not kept:
        raise CheckpointError("The checkpoints have the same weights, so they span no direction.")
    combinations = (vectors[:, :kept] / np.sqrt(values[:kept])).T
    # The place of each checkpoint along a direction, and that of the center.
    places = centered @ combinations.T
    if center is not None:
        # <center - mean, direction>, from inner products with the differences to the mean.
        against = gram[count, :count] - middle
        places = places - (against - against.mean()) @ combinations.T
    flips = orientation(places)
    directions = _combine(opened, names, combinations * flips[:, None], report)
    return PrincipalDirections(
        directions,
        (values[:kept] / values.sum()).tolist(),
        (places * flips).tolist(),
        [each.step for each in opened],
        [each.loss for each in opened],
    )


def orientation(places: Matrix) -> Matrix:
    """Signs for the columns of a path, so that every picture of it has the same orientation.

    Principal axes have no sign. The path, a row for each point, goes to the right along the first
    axis, and along each other one it bends upwards: to where it is farthest from the straight line
    between its ends.
    """
    travelled = places[-1] - places[0]
    along = (places[:, 0] - places[0, 0]) / (travelled[0] or 1.0)
    bends = places - places[0] - along[:, None] * travelled
    farthest = bends[np.abs(bends).argmax(axis=0), np.arange(places.shape[1])]
    is_straight = np.abs(farthest) <= 1e-9 * np.abs(travelled).max()
    signs: Matrix = np.where(np.where(is_straight, travelled, farthest) < 0, -1.0, 1.0)
    return signs


def gram_matrix(
    checkpoints: Sequence[SavedWeights], names: Sequence[str], progress: Progress | None = None
) -> tuple[Matrix, Matrix]:
    """Inner products of the differences to one origin, and squared norms of the weights.

    The origin is that of a checkpoint, so that rounding is relative to the differences. Rows and
    columns of checkpoints with values that are not finite are NaN. Raises CheckpointError if there
    are more than `MAX_CHECKPOINTS`.
    """
    if len(checkpoints) > MAX_CHECKPOINTS:
        raise CheckpointError(
            f"At most {MAX_CHECKPOINTS} checkpoints are compared at once, not {len(checkpoints)}: "
            "leave some out."
        )
    gram, norms = np.zeros((len(checkpoints),) * 2), np.zeros(len(checkpoints))
    first = checkpoints[0]
    total, done = sum(prod(first.shape(name)) for name in names), 0
    for name in names:
        for start, stop in _piece_ranges(first.shape(name), len(checkpoints)):
            piece = np.stack([_read(each, name, start, stop) for each in checkpoints])
            norms += np.einsum("ij,ij->i", piece, piece)
            is_finite = np.isfinite(piece).all(axis=1)
            with np.errstate(invalid="ignore"):
                differences = piece - piece[int(is_finite.argmax())]
                gram += differences @ differences.T
            done += piece.shape[1]
            if progress is not None:
                progress(done / total)
    is_bad = ~np.isfinite(norms)
    gram[is_bad, :] = gram[:, is_bad] = np.nan
    return gram, norms


def embed(gram: Matrix) -> Matrix:
    """Points with these inner products, one per row (classical scaling: Torgerson, 1952)."""
    values, vectors = _eigenvectors(gram)
    points: Matrix = vectors * np.sqrt(values)
    return points


def _eigenvectors(matrix: Matrix) -> tuple[Matrix, Matrix]:
    """Eigenvalues, the largest first and none negative, and eigenvectors as columns."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.maximum(values[::-1], 0.0), vectors[:, ::-1]


def _combine(
    checkpoints: Sequence[SavedWeights], names: Sequence[str], factors: Matrix, report: Progress
) -> list[dict[str, torch.Tensor]]:
    """Sums of the checkpoints with these factors, which add up to 0 in each row."""
    import torch  # noqa: PLC0415

    first = checkpoints[0]
    shapes = {name: first.shape(name) for name in names}
    directions = [
        {name: torch.empty(shape, dtype=torch.float32) for name, shape in shapes.items()}
        for _ in factors
    ]
    total, done = sum(map(prod, shapes.values())), 0
    for name, shape in shapes.items():
        for start, stop in _piece_ranges(shape, len(checkpoints)):
            piece = np.stack([_read(each, name, start, stop) for each in checkpoints])
            # Differences, so that rounding is relative to them and not to the weights.
            sums = torch.from_numpy(factors @ (piece - piece[0]))
            for direction, row in zip(directions, sums, strict=True):
                values = row.to(torch.float32).reshape(stop - start, *shape[1:])
                if shape:
                    direction[name][start:stop] = values
                else:
                    direction[name].copy_(values.reshape(()))
            done += piece.shape[1]
            report(0.5 + done / total / 2)
    return directions


def _piece_ranges(shape: Sequence[int], checkpoints: int) -> Any:
    return row_ranges(shape, max(1, _PIECE_BYTES // 8 // checkpoints))


def _read(weights: SavedWeights, name: str, start: int, stop: int) -> Matrix:
    import torch  # noqa: PLC0415

    values: Matrix = weights.read(name, start, stop).reshape(-1).to("cpu", torch.float64).numpy()
    return values


def _check_finite(gram: Matrix, checkpoints: Sequence[SavedWeights]) -> None:
    for diagonal, each in zip(np.diag(gram), checkpoints, strict=True):
        if not np.isfinite(diagonal):
            raise CheckpointError(f"{each.name} has weights that are not finite: leave it out.")
