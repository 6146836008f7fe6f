"""The path of the weights of one run or of several, in the plane in which they vary most.

The points of all runs are taken together (each run with the same weight), and their first two
principal components span the plane. Coordinates are in units of the weights (L2). A random walk in
many dimensions has smooth cosines as its principal components too (Antognini and Sohl-Dickstein,
2018), so a smooth curve alone is no sign of a smooth training: see the share that is explained.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sentinel.insight.measure.parameters import Selection, choose_names, describe_selection
from sentinel.insight.result import Result
from sentinel.insight.trajectory.principal_directions import (
    Progress,
    embed,
    gram_matrix,
    orientation,
)
from sentinel.insight.trajectory.recorder import TrajectoryRecorder
from sentinel.insight.trajectory.saved_weights import (
    CheckpointError,
    SavedWeights,
    Source,
    common_names,
    find_checkpoints,
    open_weights,
)
from sentinel.insight.trajectory.weight_projection import WeightProjection
from sentinel.model.json_safe import finite_values

__all__ = ["Trajectory", "TrajectoryRecorder", "recorded_trajectory", "trajectory"]

Matrix = npt.NDArray[np.float64]
MAX_RUNS = 20

_MAX_POINTS_CHARS = 2 << 20
_TOO_LARGE = (
    "The projections are too large to be stored, so that the stored path cannot be put into one "
    "plane with others: record fewer or smaller snapshots."
)
_MAX_NAMES = 4000
"""Names of parameters that a result lists, so that checkpoints can be added to its plane."""


@dataclass(frozen=True)
class Trajectory(Result):
    """Paths of the weights of runs in one plane.

    Each run has `name`, and lists with one entry per snapshot: `steps`, `x` and `y` (units of the
    weights), `loss` (None if unknown), `distance_travelled`, `distance_to_initial` and
    `distance_to_reference` (None without a reference), which are relative to the norm of the
    initial weights; `initial_norm` (0: those are absolute); and `straightness`: distance to the
    initial weights by distance travelled, from 0 to 1, None for a path of length 0. `explained`
    is the share of the variance along x and y. `reference` is the place of the reference weights
    in the plane, if there are any. `projection` holds the random projections of a recorded run,
    with which it can be put into one plane with others.
    """

    runs: list[dict[str, Any]]
    explained: list[float]
    selection: str
    parameter_count: int
    note: list[str] = field(default_factory=list)
    reference: dict[str, float] | None = None
    projection: dict[str, Any] | None = None
    name: str = ""
    step: int | None = None
    kind: str = "trajectory"

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON: numbers that are not finite are None.

        Projections above 2 MiB are left out, so that the result can be stored with the run.
        """
        plain = super().to_json()
        if self.projection is not None and len(self.projection["points"]) > _MAX_POINTS_CHARS:
            plain["projection"] = None
            plain["note"] = [*self.note, _TOO_LARGE]
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The result from `to_json`. Raises ValueError if `data` is none."""
        if data.get("kind") != "trajectory" or not isinstance(data.get("runs"), list):
            raise ValueError("This is no trajectory.")
        return super().from_json(data)


@dataclass
class _Path:
    """The points of one run, one per row, in a space that all runs share. Distances are absolute;
    `initial` is a point too. `travelled` begins at the initial weights.
    """

    name: str
    steps: list[int]
    losses: list[float | None]
    points: Matrix
    initial: Matrix
    initial_norm: float
    travelled: Matrix
    to_initial: Matrix
    to_reference: Matrix | None = None
    reference: Matrix | None = None


def trajectory(  # noqa: PLR0913 - each is explained below
    source: Any,
    *,
    names: Sequence[str] | None = None,
    parameters: Selection = None,
    reference: Source = None,
    name: str = "",
    save: bool = True,
    progress: Progress | None = None,
) -> Trajectory:
    """The path of one run, or of several in one plane.

    A run is a `TrajectoryRecorder`; a `Trajectory` of one recorded run, or its file; a folder of
    checkpoints; or a list of checkpoints (paths, state dicts or modules). `source` is one run, a
    list of them, or a mapping of names to them; a list of single checkpoints is one run. `names`
    are the names of the runs. Checkpoints are compared exactly, as they are streamed from disk;
    recorded runs, and checkpoints beside them, through their random projections, which must be of
    the same parameters, size and seed. `parameters` and `reference` are for checkpoints: which
    weights are compared, and weights whose distance is measured. `progress` is called with the
    share that is done. Within a monitored run the result is stored with the run, unless `save` is
    false.

    Raises ValueError if runs cannot be compared, and CheckpointError if one cannot be read.
    """
    runs = _runs(source, names)
    if len(runs) > MAX_RUNS:
        raise ValueError(f"At most {MAX_RUNS} runs fit into one plane, not {len(runs)}.")
    recorded = {label: run for label, run in runs.items() if isinstance(run, Trajectory)}
    saved = {label: run for label, run in runs.items() if not isinstance(run, Trajectory)}
    if len(runs) == 1 and recorded:
        (only,) = recorded.values()
        result = only if not name else Trajectory(**{**asdict(only), "name": name})
    elif recorded:
        result = _from_projections(recorded, saved, name, progress)
    else:
        result = _from_checkpoints(saved, parameters, reference, name, progress)
    if save:
        _store(result)
    return result


def recorded_trajectory(state: Mapping[str, Any], name: str = "") -> Trajectory:
    """The trajectory of the state of a recorder, with its projections."""
    values = np.asarray(state["values"], dtype=np.float64).reshape(-1, state["size"] + 2)
    size = int(state["size"])
    initial = np.asarray(state["initial"], dtype=np.float64)[:size]
    reference = None
    if state["reference"] is not None:
        reference = np.asarray(state["reference"], dtype=np.float64)
    points = values[:, :size]
    with np.errstate(invalid="ignore"):
        exact_initial, exact_reference = np.sqrt(values[:, size]), np.sqrt(values[:, size + 1])
    to_initial, initial_is_exact = _exact_or_estimated(exact_initial, points, initial)
    to_reference = None
    if reference is not None:
        to_reference, reference_is_exact = _exact_or_estimated(exact_reference, points, reference)
    path = _Path(
        name,
        [*state["steps"]],
        [*state["losses"]],
        points,
        initial,
        float(np.sqrt(float(state["initial_square"]))),
        np.asarray(state["travelled"], dtype=np.float64),
        to_initial,
        to_reference,
        reference,
    )
    note = [_projection_note(size, float(state["error"]))]
    exact = [
        *(["the initial"] if initial_is_exact else []),
        *(["the reference"] if reference is not None and reference_is_exact else []),
    ]
    if exact:
        note.append(f"Distances to {' and '.join(exact)} weights are exact.")
    projection = {
        "digest": state["digest"],
        "size": size,
        "seed": int(state["seed"]),
        "error": float(state["error"]),
        "names": [*state["names"]] if len(state["names"]) <= _MAX_NAMES else [],
        "initial": _encode(initial, "<f8"),
        "reference": None if reference is None else _encode(reference, "<f8"),
        # Relative to the initial weights, for which four bytes are exact enough.
        "points": _encode(points - initial, "<f4"),
    }
    return _in_plane(
        [path],
        selection=str(state["selection"]),
        parameter_count=int(state["parameter_count"]),
        note=note,
        name=name,
        projection=projection,
    )


def _exact_or_estimated(exact: Matrix, points: Matrix, origin: Matrix) -> tuple[Matrix, bool]:
    """Exact distances where they were measured, and whether all of them were."""
    estimated = np.linalg.norm(points - origin, axis=1)
    return np.where(np.isnan(exact), estimated, exact), bool(len(exact)) and not np.isnan(
        exact
    ).any()


def _projection_note(size: int, error: float) -> str:
    return (
        f"Distances between snapshots are estimated from {size} random projections, with a "
        f"standard error of {error * 100:.1f} %."
    )


def _runs(source: Any, names: Sequence[str] | None) -> dict[str, Trajectory | list[SavedWeights]]:
    """The runs by name. Raises ValueError if there is none or the names do not fit."""
    if isinstance(source, Mapping) and not _is_state_dict(source):
        names, sources = [*source], [*source.values()]
    else:
        sources = _sources(source)
    if not sources:
        raise ValueError("Give at least one recorder, trajectory or checkpoint.")
    if names is not None and len(names) != len(sources):
        raise ValueError(f"There are {len(names)} names for {len(sources)} runs.")
    runs: dict[str, Trajectory | list[SavedWeights]] = {}
    for number, each in enumerate(sources):
        label = names[number] if names else _label(each, number, len(sources))
        if label in runs:
            label = f"{label} ({number + 1})"
        runs[label] = _run(each)
    return runs


def _sources(source: Any) -> list[Any]:
    """The runs of a source: a list of single checkpoints is one run."""
    if not isinstance(source, list | tuple):
        return [source]
    is_run = [_stands_for_run(each) for each in source]
    return [*source] if any(is_run) else [[*source]] if source else []


def _stands_for_run(source: Any) -> bool:
    if isinstance(source, TrajectoryRecorder | Trajectory | list | tuple):
        return True
    if not isinstance(source, str | Path):
        return False
    path = Path(source)
    return _is_result(path) or (path.is_dir() and find_checkpoints(path) != [path])


def _run(source: Any) -> Trajectory | list[SavedWeights]:
    if isinstance(source, TrajectoryRecorder):
        return source.result()
    if isinstance(source, Trajectory):
        return source
    if isinstance(source, list | tuple):
        return [open_weights(each) for each in source]
    if isinstance(source, str | Path):
        if _is_result(Path(source)):
            return _read_result(Path(source))
        return [open_weights(each) for each in find_checkpoints(source)]
    return [open_weights(source)]


def _is_result(path: Path) -> bool:
    return path.suffix == ".json" and not path.name.endswith(".index.json") and path.is_file()


def _read_result(path: Path) -> Trajectory:
    try:
        content = json.loads(path.read_bytes())
        return Trajectory.from_json(content.get("data", content))
    except (OSError, ValueError, TypeError, AttributeError):
        raise CheckpointError(f"{path} is no trajectory: give the file of a stored one.") from None


def _label(source: Any, number: int, count: int) -> str:
    """The name of a run: that of its folder, where it has one."""
    if isinstance(source, str | Path):
        path = Path(source)
        return path.parent.parent.name if _is_result(path) else path.name or str(path)
    if isinstance(source, Trajectory) and source.name:
        return source.name
    if isinstance(source, list | tuple) and source and isinstance(source[0], str | Path):
        return Path(source[0]).parent.name or "checkpoints"
    return f"run {number + 1}" if count > 1 else "run"


def _is_state_dict(source: Mapping[Any, Any]) -> bool:
    return any(hasattr(value, "is_floating_point") for value in source.values())


def _from_checkpoints(
    runs: Mapping[str, Any],
    parameters: Selection,
    reference: Source,
    name: str,
    progress: Progress | None,
) -> Trajectory:
    """The exact trajectories of runs of checkpoints."""
    opened = [each for run in runs.values() for each in run]
    everything = [*opened] if reference is None else [*opened, open_weights(reference)]
    chosen = choose_names(common_names(everything), parameters)
    gram, squares = gram_matrix(everything, chosen, progress)
    is_finite = np.isfinite(squares)
    note = [
        f"{each.name} is left out: it has weights that are not finite."
        for each, finite in zip(everything, is_finite, strict=True)
        if not finite
    ]
    if reference is not None and not is_finite[-1]:
        raise CheckpointError(f"{everything[-1].name} has weights that are not finite.")
    if not is_finite.any():
        raise CheckpointError("No checkpoint has finite weights.")
    points = np.full((len(everything), int(is_finite.sum())), np.nan)
    points[is_finite] = embed(gram[np.ix_(is_finite, is_finite)])
    reference_point = None if reference is None else points[-1]
    paths, first = [], 0
    for label, checkpoints in runs.items():
        rows = [row for row in range(first, first + len(checkpoints)) if is_finite[row]]
        first += len(checkpoints)
        if rows:
            kept = [everything[row] for row in rows]
            norm = float(np.sqrt(squares[rows[0]]))
            paths.append(_checkpoint_path(label, kept, points[rows], norm, reference_point))
    return _in_plane(
        paths,
        selection=describe_selection(parameters) if parameters is not None else "all weights",
        parameter_count=sum(int(np.prod(opened[0].shapes[each])) for each in chosen),
        note=[*note, "The path is measured between checkpoints: what lies between is not seen."],
        name=name,
    )


def _checkpoint_path(
    name: str,
    checkpoints: Sequence[SavedWeights],
    points: Matrix,
    initial_norm: float,
    reference: Matrix | None,
) -> _Path:
    """The path through checkpoints, the first of which has the initial weights."""
    gaps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    steps = [each.step for each in checkpoints]
    return _Path(
        name,
        [*range(len(steps))] if None in steps else [step or 0 for step in steps],
        [each.loss for each in checkpoints],
        points,
        points[0],
        initial_norm,
        np.concatenate([[0.0], np.cumsum(gaps)]),
        np.linalg.norm(points - points[0], axis=1),
        None if reference is None else np.linalg.norm(points - reference, axis=1),
        reference,
    )


def _from_projections(
    recorded: Mapping[str, Trajectory],
    saved: Mapping[str, Any],
    name: str,
    progress: Progress | None,
) -> Trajectory:
    """Recorded runs, and checkpoints projected in the same way, in one plane."""
    paths = []
    for label, each in recorded.items():
        if each.projection is None or len(each.runs) != 1:
            raise ValueError(
                f"{label} has no projections: give the trajectory of one recorded run, or the "
                "recorder."
            )
        try:
            paths.append(_decoded_path(label, each))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"The stored trajectory of {label} is damaged: {error!r}.") from None
    (first_label, first), *others = recorded.items()
    shared = first.projection or {}
    for label, each in others:
        if (each.projection or {}).get("digest") != shared["digest"]:
            raise ValueError(
                f"{label} and {first_label} are recorded with different parameters, sizes or "
                "seeds: one plane needs recorders with the same."
            )
    for label, checkpoints in saved.items():
        paths.append(_projected_path(label, checkpoints, shared, progress))
    return _in_plane(
        paths,
        selection=first.selection,
        parameter_count=first.parameter_count,
        note=[_projection_note(int(shared["size"]), float(shared["error"]))],
        name=name,
    )


def _decoded_path(name: str, result: Trajectory) -> _Path:
    stored, run = result.projection or {}, result.runs[0]
    initial = _decode(stored["initial"], "<f8")
    points = initial + _decode(stored["points"], "<f4").reshape(-1, int(stored["size"]))
    if len(points) != len(run["steps"]):
        raise ValueError(f"{len(points)} points for {len(run['steps'])} steps")
    norm = float(run["initial_norm"])
    unit = norm or 1.0
    to_reference = run["distance_to_reference"]
    return _Path(
        name,
        run["steps"],
        run["loss"],
        points,
        initial,
        norm,
        _floats(run["distance_travelled"]) * unit,
        _floats(run["distance_to_initial"]) * unit,
        None if to_reference is None else _floats(to_reference) * unit,
        None if stored["reference"] is None else _decode(stored["reference"], "<f8"),
    )


def _projected_path(
    name: str,
    checkpoints: Sequence[SavedWeights],
    shared: Mapping[str, Any],
    progress: Progress | None,
) -> _Path:
    """Checkpoints as projected by the recorder of another run."""
    if not shared["names"]:
        raise ValueError("The recorded run has too many parameters to compare checkpoints with it.")
    shapes = {each: checkpoints[0].shape(each) for each in shared["names"]}
    projection = WeightProjection(shapes, int(shared["size"]), int(shared["seed"]))
    if projection.digest != shared["digest"]:
        raise ValueError(f"{name} has weights of other shapes than the recorded run.")
    points = []
    for number, each in enumerate(checkpoints, 1):
        if {key: each.shape(key) for key in shapes} != shapes:
            raise CheckpointError(f"{each.name} has weights of other shapes.")
        points.append(np.asarray(projection.project(each.pieces(shapes)), dtype=np.float64))
        if progress is not None:
            progress(number / len(checkpoints))
    norm = sum(
        float(piece.double().square().sum()) for _, _, piece in checkpoints[0].pieces(shapes)
    )
    return _checkpoint_path(name, checkpoints, np.stack(points), float(norm**0.5), None)


def _in_plane(  # noqa: PLR0913 - the fields of the result
    paths: Sequence[_Path],
    *,
    selection: str,
    parameter_count: int,
    note: Sequence[str],
    name: str,
    projection: dict[str, Any] | None = None,
) -> Trajectory:
    """The paths in the plane of their first two principal components."""
    notes = [*note]
    for path in paths:
        is_bad = ~np.isfinite(path.points).all(axis=1)
        if is_bad.any():
            first = path.steps[int(is_bad.argmax())]
            notes.append(
                f"{path.name or 'The run'}: {int(is_bad.sum())} snapshots from step {first} on "
                "have no place, because their weights are not finite."
            )
    finite = [path.points[np.isfinite(path.points).all(axis=1)] for path in paths]
    width = paths[0].points.shape[1]
    center, axes, explained = _plane([each for each in finite if len(each)], width)
    runs = [_described(path, (path.points - center) @ axes) for path in paths]
    references = [path.reference for path in paths if path.reference is not None]
    place = None
    if references and np.isfinite(references[0]).all():
        x, y = (references[0] - center) @ axes
        place = {"x": float(x), "y": float(y)}
    last_steps = [path.steps[-1] for path in paths if path.steps]
    if any(not path.initial_norm for path in paths):
        notes.append("Distances are absolute where the initial weights are zero.")
    return Trajectory(
        runs=runs,
        explained=explained,
        selection=selection,
        parameter_count=parameter_count,
        note=notes,
        reference=place,
        projection=projection,
        name=name,
        step=max(last_steps, default=None),
    )


def _plane(groups: Sequence[Matrix], width: int) -> tuple[Matrix, Matrix, list[float]]:
    """Center, two axes as columns, and the share of the variance along each, of `width` numbers.

    Each group of points has the same weight. The signs of the axes are those of the first group.
    """
    if not groups:
        return np.zeros(width), np.zeros((width, 2)), [0.0, 0.0]
    center = np.mean([each.mean(axis=0) for each in groups], axis=0)
    weighted = [(each - center) / np.sqrt(len(each)) for each in groups]
    _, values, rows = np.linalg.svd(np.concatenate(weighted), full_matrices=False)
    axes = np.zeros((width, 2))
    axes[:, : len(rows[:2])] = rows[:2].T
    axes *= orientation(groups[0] @ axes)
    shares = values**2 / ((values**2).sum() or 1.0)
    return center, axes, [*map(float, shares[:2]), 0.0, 0.0][:2]


def _described(path: _Path, places: Matrix) -> dict[str, Any]:
    """A run as plain data; what is not finite is None."""
    unit = path.initial_norm or 1.0
    straightness = None
    if len(path.travelled) and path.travelled[-1] > 0:
        net = float(np.linalg.norm(path.points[-1] - path.initial))
        straightness = min(1.0, net / float(path.travelled[-1]))
    reference = path.to_reference
    described: dict[str, Any] = finite_values(
        {
            "name": path.name,
            "steps": path.steps,
            "x": places[:, 0].tolist(),
            "y": places[:, 1].tolist(),
            "loss": path.losses,
            "distance_travelled": (path.travelled / unit).tolist(),
            "distance_to_initial": (path.to_initial / unit).tolist(),
            "distance_to_reference": None if reference is None else (reference / unit).tolist(),
            "straightness": straightness,
            "initial_norm": path.initial_norm,
        }
    )
    return described


def _store(result: Trajectory) -> None:
    """Store the result with the run that is monitored in this process, if there is one."""
    from sentinel.store.artifact import current_run_directory, save_artifact  # noqa: PLC0415

    directory = current_run_directory() if result.runs else None
    if directory is not None:
        save_artifact(directory, result)


def _encode(array: Matrix, kind: str) -> str:
    """Numbers as base64 of that little-endian type."""
    return b64encode(np.ascontiguousarray(array, dtype=kind).tobytes()).decode()


def _decode(text: str, kind: str) -> Matrix:
    return np.frombuffer(b64decode(text), dtype=kind).astype(np.float64)


def _floats(values: Iterable[float | None]) -> Matrix:
    return np.array([np.nan if each is None else each for each in values], dtype=np.float64)
