"""The figures of runs by name: curves of their signals, and pictures of their stored results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.insight.figures import (
    COLUMN_INCHES,
    PICTURES,
    plot,
    plot_curves,
    plot_layers,
)
from sentinel.report.compared_results import compared_results
from sentinel.report.comparison import ComparedRun
from sentinel.store.artifact import TITLES, ArtifactError, list_artifacts, load_artifact

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS, _COLUMNS = 600, 120
_FLOW = "gradient_flow"
_FIRST_STATISTIC = "layer_grad_norm"


class FigureError(ValueError):
    """There is no such figure; the message names those that there are."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A figure of a stored result."""

    directory: Path
    artifact_id: str
    picture: str
    title: str


def figure_names(runs: Sequence[ComparedRun]) -> dict[str, str]:
    """The figures of one run, or those that compare several, and what each shows."""
    names = {signal["name"]: _label(signal) for signal in _signals(runs)}
    if len(runs) > 1:
        if _shared_trajectory(runs) is not None:
            names["trajectory"] = "Trajectories of the weights in one plane"
        return names
    (run,) = runs
    names |= {name: stored.title for name, stored in _stored(run)}
    if run.reader.has_layers():
        statistics = run.reader.layers("", columns=2)["statistics"]
        names |= {name: f"{name} of each layer over the steps" for name in statistics}
        names.setdefault(_FLOW, f"{statistics[0]} of each layer over the steps")
    return names


def draw_figure(runs: Sequence[ComparedRun], name: str, *, width: float = COLUMN_INCHES) -> Figure:
    """The figure of that name. Raises FigureError if there is none, ImportError, ValueError."""
    names = figure_names(runs)
    if name not in names:
        of = "these runs" if len(runs) > 1 else f"the run {runs[0].name}"
        known = ", ".join(names) or "none"
        raise FigureError(f"There is no figure {name!r} of {of}. It has: {known}.")
    signals = {signal["name"]: signal for signal in _signals(runs)}
    if name in signals:
        return plot_curves(_curves(runs, name), _label(signals[name]), width=width)
    if len(runs) > 1:
        return plot(_shared_trajectory(runs), width=width)
    (run,) = runs
    stored = dict(_stored(run)).get(name)
    if stored is None or (name == _FLOW and run.reader.has_layers()):
        statistic = _FIRST_STATISTIC if name == _FLOW else name
        return plot_layers(run.reader.layers(statistic, columns=_COLUMNS), width=width)
    try:
        data = load_artifact(stored.directory, stored.artifact_id)["data"]
    except ArtifactError as error:
        raise FigureError(str(error)) from None
    return plot(data, picture=stored.picture, width=width)


def _signals(runs: Sequence[ComparedRun]) -> list[Mapping[str, Any]]:
    """The signals with values that all of the runs have."""
    found = [{each["name"]: each for each in run.reader.signals() if each["count"]} for run in runs]
    return [each for name, each in found[0].items() if all(name in other for other in found[1:])]


def _label(signal: Mapping[str, Any]) -> str:
    name = str(signal.get("label") or signal["name"])
    return f"{name} ({signal['unit']})" if signal.get("unit") else name


def _curves(runs: Sequence[ComparedRun], name: str) -> dict[str, Mapping[str, Any]]:
    curves = {}
    for run in runs:
        series = run.reader.series([name], points=_POINTS)["series"]
        if name in series:
            curves[run.name] = series[name]
    return curves


def _stored(run: ComparedRun) -> Iterator[tuple[str, _Stored]]:
    """Figures of the stored results: the newest of a kind by its kind, and each by its id."""
    if run.directory is None:
        return
    headers = [each for each in list_artifacts(run.directory) if each["kind"] in TITLES]
    newest = {each["kind"]: each for each in headers}
    for key, header in [*newest.items(), *((each["id"], each) for each in headers)]:
        kind = header["kind"]
        if kind == "sharpness":
            continue
        step = "" if header["step"] is None else f", step {header['step']}"
        for picture in PICTURES.get(kind, ("",)):
            is_first = picture == PICTURES.get(kind, ("",))[0]
            if not is_first and _is_curve(run.directory, header["id"]):
                continue
            name = key if is_first else key.replace(kind, f"{kind}_{picture}", 1)
            title = " ".join(filter(None, [header["title"], header["name"]])) + step
            if picture:
                title += f", {picture}"
            yield name, _Stored(run.directory, header["id"], picture, title)


def _shared_trajectory(runs: Sequence[ComparedRun]) -> Mapping[str, Any] | None:
    found = compared_results([run.name for run in runs], [run.directory for run in runs])
    trajectory: Mapping[str, Any] | None = None if found is None else found["trajectory"]
    return trajectory


def _is_curve(directory: Path, artifact_id: str) -> bool:
    """Whether a stored surface has one direction: it has one picture. True if it is unreadable."""
    try:
        return not load_artifact(directory, artifact_id)["data"].get("y")
    except ArtifactError:
        return True
