"""Figures for papers, drawn by Matplotlib: vectors with embedded fonts, as wide as a column.

A figure of the same data is the same file, byte for byte: it holds no date, and no setting of the
user's Matplotlib. Colours are those of Cividis and of Okabe and Ito (2008, "Color Universal
Design"), which people with a colour vision deficiency can distinguish; curves differ in their
dashes too. It needs the extra `train-sentinel[figures]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.model.json_safe import finite_values
from sentinel.transport.replaced_file import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN_INCHES = 3.3
"""Width of a column of two."""
SUFFIXES = (".pdf", ".svg", ".png")
PICTURES = {"loss_surface": ("contour", "3d")}
"""Names of the pictures of a kind of result that has several; the first is the default."""

_GOLDEN = 0.72
"""Height of most figures, as a share of their width."""
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
_PATH, _CENTER, _ZERO, _BAD = "#ffffff", "#d55e00", "#56b4e9", "#c8202e"
_MARKERS = {"minimum": "v", "saddle": "X", "maximum": "^"}
_LEVELS, _LINES = 40, 12
_MAX_ENTRIES_INSIDE = 6
_TOP_QUANTILE, _OUTLIER_FACTOR = 0.97, 3.0
"""A surface whose highest losses would hide all others is cut off at this quantile."""
_MAX_LAYER_TICKS, _MAX_NAME_CHARS = 30, 26
_MAX_SETTINGS = 12
_SMALL = 6.5
"""Size of long titles of axes."""
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.0,
    # Fonts as TrueType, which publishers ask for, and as outlines.
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "sentinel",
    "savefig.dpi": 300,
    "figure.dpi": 100,
}
_STATISTICS = {
    "layer_grad_norm": "gradient norm (L2)",
    "layer_grad_zero_share": "share of zeros in the gradient",
    "layer_update_ratio": "update / weights (L2)",
    "layer_grad_cosine": "cosine to the last gradient",
    "layer_noise_scale": "gradient noise scale (batches)",
}
_RANGES = {"layer_grad_zero_share": (0.0, 1.0), "layer_grad_cosine": (-1.0, 1.0)}
"""Statistics whose colours are not logarithmic."""


def plot(result: Any, *, picture: str = "", width: float = COLUMN_INCHES) -> Figure:
    """The figure of a result of `sentinel.insight`, `width` inches wide.

    `result` is a `LossSurface`, `Trajectory`, `GradientFlow` or `Importance`, or the data of a
    stored one. `picture` of a loss surface is "contour" (the default) or "3d". The figure is a
    `matplotlib.figure.Figure`; `save_figure` writes it. Raises ImportError without Matplotlib, and
    ValueError for what has no such figure.
    """
    data = result if isinstance(result, Mapping) else result.to_json()
    kind = str(data.get("kind", ""))
    pictures = PICTURES.get(kind, ("",))
    if (picture or pictures[0]) not in pictures:
        known = " or ".join(filter(None, pictures)) or "one only"
        raise ValueError(f"There is no picture {picture!r} of {kind}: it has {known}.")
    if kind == "loss_surface":
        if not data["y"]:
            return _curve_of_losses(data, width)
        return _scene(data, width) if picture == "3d" else _contour(data, width)
    if kind == "trajectory":
        return _paths(data, width)
    if kind == "gradient_flow":
        values = [[value] for value in data["layer_grad_norm"]]
        step = data.get("step")
        grid = {"layers": data["layers"], "x": [0 if step is None else step], "values": values}
        return plot_layers({"statistic": "layer_grad_norm", **grid}, width=width)
    if kind == "importance":
        return _importance(data, width)
    raise ValueError(f"There is no figure of a result of the kind {kind!r}.")


def plot_layers(grid: Mapping[str, Any], *, width: float = COLUMN_INCHES) -> Figure:
    """The heat map of a statistic of layers over steps; `grid` is that of `RunReader.layers`."""
    import numpy as np  # noqa: PLC0415 - reports need none
    from matplotlib.colors import LogNorm, Normalize  # noqa: PLC0415

    layers, steps = list(grid["layers"]), list(grid["x"])
    values = np.array(grid["values"], dtype=float).reshape(len(layers), len(steps))
    bad = [set(columns) for columns in grid.get("bad") or [()] * len(layers)]
    height = min(0.9 + 0.13 * len(layers), 7.0)
    with _styled(width, max(height, 1.4)) as (figure, axes):
        statistic = str(grid["statistic"])
        label, limits = _STATISTICS.get(statistic, statistic), _RANGES.get(statistic)
        sizes = np.abs(values[np.isfinite(values) & (values != 0)])
        extend = {"min": False, "max": any(bad)}
        if limits is None:
            low, high = (sizes.min(), sizes.max()) if sizes.size else (0.1, 1.0)
            norm: Any = LogNorm(max(low, high * 1e-12), high if high > low else low * 10)
            extend["min"] = bool((values == 0).any())
            # Zero has a colour of its own, and what is nearly zero the lowest one.
            with np.errstate(invalid="ignore"):
                sizes = np.maximum(np.abs(values), norm.vmin)
            values = np.where(values == 0, norm.vmin / 1e3, sizes)
            label += ", logarithmic"
        else:
            norm = Normalize(*limits)
        for row, columns in enumerate(bad):
            values[row, list(columns)] = norm.vmax * 1e3
        colors = _color_map("BrBG" if limits is not None and limits[0] < 0 else "cividis")
        colors = colors.with_extremes(under=_ZERO, over=_BAD, bad="0.88")
        edges = _edges(steps)
        mesh = axes.pcolormesh(
            edges, np.arange(len(layers) + 1) - 0.5, values, norm=norm, cmap=colors, linewidth=0
        )
        mesh.set_edgecolor("face")
        axes.invert_yaxis()
        stride = ceil(len(layers) / _MAX_LAYER_TICKS) or 1
        shown = range(0, len(layers), stride)
        axes.set_yticks([*shown], [_end_of(layers[index]) for index in shown])
        axes.set_xlabel("step")
        axes.tick_params(length=2)
        name = {(True, True): "both", (True, False): "min", (False, True): "max"}
        ends = name.get((extend["min"], extend["max"]), "neither")
        bar = figure.colorbar(mesh, ax=axes, extend=ends, aspect=16, pad=0.02)
        notes = [
            text for key, text in (("min", "blue: 0"), ("max", "red: infinite")) if extend[key]
        ]
        _label_bar(bar, "\n".join([label, *([", ".join(notes)] if notes else [])]))
    return figure


def plot_curves(
    curves: Mapping[str, Mapping[str, Any]], label: str, *, width: float = COLUMN_INCHES
) -> Figure:
    """A signal over steps, of one or several runs by name.

    A curve is one of `RunReader.series`: x, mean, and min and max, which are drawn as a band;
    `attempt`, where a new one is not joined to the one before; and the x of values that are not
    finite.
    """
    with _styled(width, _GOLDEN * width) as (figure, axes):
        for index, (name, curve) in enumerate(curves.items()):
            color, dash = _COLORS[index % len(_COLORS)], _DASHES[index % len(_DASHES)]
            xs, means, lows, highs = _parts(curve)
            axes.plot(
                xs, means, color=color, linestyle=dash if len(curves) > 1 else "-", label=name
            )
            if not curve.get("is_raw"):
                axes.fill_between(xs, lows, highs, color=color, alpha=0.18, linewidth=0)
            bad = list(curve.get("bad") or ())
            if bad:
                marks = [0.02] * len(bad)
                transform = axes.get_xaxis_transform()
                axes.plot(bad, marks, "x", color=_BAD, transform=transform, clip_on=False)
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        axes.margins(x=0.01)
        axes.grid(axis="y", color="0.9", linewidth=0.5)
        _add_legend(axes, len(curves))
    return figure


def _add_legend(axes: Any, count: int) -> None:
    """The names of the curves: above the axes if they would cover the curves."""
    if count > _MAX_ENTRIES_INSIDE:
        axes.legend(
            handlelength=2.6,
            ncols=3,
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            fontsize=_SMALL,
        )
    elif count > 1:
        axes.legend(handlelength=2.6)


def save_figure(figure: Figure, path: Path | str) -> Path:
    """Write a figure as PDF, SVG or PNG, by the suffix of the file, and return its path.

    If that fails, an earlier file stays as it was. Raises ValueError for another suffix, OSError.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path} is no {', '.join(SUFFIXES)} file: give one of these suffixes.")
    metadata: dict[str, dict[str, Any]] = {
        ".pdf": {"Creator": "sentinel", "Producer": None, "CreationDate": None},
        ".svg": {"Creator": "sentinel", "Date": None},
        ".png": {"Software": None},
    }
    with replacing(path) as partial, _style():
        figure.savefig(partial, format=suffix[1:], metadata=metadata[suffix])
    return path


# Loss surface


def _contour(data: Mapping[str, Any], width: float) -> Figure:
    import numpy as np  # noqa: PLC0415
    from matplotlib.colors import Normalize  # noqa: PLC0415

    with _styled(width, 0.82 * width) as (figure, axes):
        low, high, is_cut = _limits(data)
        norm, levels = Normalize(low, high), np.linspace(low, high, _LEVELS + 1)
        colors = _color_map("cividis")
        shown = None
        for part in _surface_parts(data):
            losses = np.ma.masked_invalid(np.clip(np.array(part["loss"], dtype=float), low, high))
            shown = axes.contourf(part["x"], part["y"], losses, levels, cmap=colors, norm=norm)
            # Without an edge, lines are seen between the areas.
            shown.set_edgecolor("face")
            lines = np.linspace(low, high, _LINES + 2)[1:-1]
            ink = ["#ffffff" if norm(level) < 0.5 else "#000000" for level in lines]
            axes.contour(
                part["x"], part["y"], losses, lines, colors=ink, linewidths=0.35, alpha=0.6
            )
            if part is not data:
                corners = [part["x"][0], part["x"][-1]], [part["y"][0], part["y"][-1]]
                (left, right), (bottom, top) = corners
                xs, ys = [left, right, right, left, left], [bottom, bottom, top, top, bottom]
                axes.plot(xs, ys, color="w", linewidth=0.5, linestyle=":")
        axes.set_facecolor(_BAD if _has_holes(data) else "white")
        _draw_arrows(axes, data)
        _draw_marks(axes, data)
        axes.set_xlim(data["x"][0], data["x"][-1])
        axes.set_ylim(data["y"][0], data["y"][-1])
        axes.set_xlabel(_direction(data, 0), fontsize=_SMALL)
        axes.set_ylabel(_direction(data, 1), fontsize=_SMALL)
        for side in ("top", "right"):
            axes.spines[side].set_visible(True)
        assert shown is not None
        bar = figure.colorbar(
            shown, ax=axes, aspect=24, pad=0.02, extend="max" if is_cut else "neither"
        )
        _label_bar(bar, "loss" + (" (red: not finite)" if _has_holes(data) else ""))
        _ticks(bar.ax.yaxis, low, high)
    return figure


def _scene(data: Mapping[str, Any], width: float) -> Figure:
    import numpy as np  # noqa: PLC0415
    from matplotlib.cm import ScalarMappable  # noqa: PLC0415
    from matplotlib.colors import Normalize  # noqa: PLC0415

    with _styled(width, 0.8 * width, projection="3d") as (figure, scene):
        low, high, is_cut = _limits(data)
        parts = _surface_parts(data)
        heights = [np.clip(np.array(each["loss"], dtype=float), low, high) for each in parts]
        colors, norm = _color_map("cividis"), Normalize(low, high)
        scene.computed_zorder = False
        # Lines; all of them where parts have to meet.
        count = 48 if len(parts) == 1 else max(map(len, heights))
        for number, part in enumerate(parts):
            x, y = np.meshgrid(part["x"], part["y"])
            shown = heights[number].copy()
            for finer in parts[number + 1 :]:
                # The finer part is drawn in place of these points.
                shown[_interior(x, finer["x"]) & _interior(y, finer["y"])] = np.nan
            drawn = scene.plot_surface(
                x,
                y,
                shown,
                cmap=colors,
                norm=norm,
                rcount=count,
                ccount=count,
                linewidth=0.1,
                zorder=1,
            )
            drawn.set_edgecolor("face")
        lift = 0.02 * (high - low)

        def height(at: Mapping[str, Any]) -> float:
            number = max(n for n, each in enumerate(parts) if _is_inside(each, at))
            column = int(np.abs(np.array(parts[number]["x"]) - at["x"]).argmin())
            row = int(np.abs(np.array(parts[number]["y"]) - at["y"]).argmin())
            return float(heights[number][row, column]) + lift

        path = [each for each in data.get("trajectory") or () if _is_inside(data, each)]
        if path:
            xs, ys = [each["x"] for each in path], [each["y"] for each in path]
            zs = [height(each) for each in path]
            style: dict[str, Any] = {"color": _CENTER, "zorder": 3}
            scene.plot(xs, ys, zs, marker="o", markersize=1.2, linewidth=0.9, **style)
            scene.plot(xs[:1], ys[:1], zs[:1], marker="o", markersize=5, fillstyle="none", **style)
        center = data.get("center")
        if center and _is_inside(data, center):
            dot = {"marker": "o", "markersize": 3.5, "markeredgecolor": "w"}
            at = [center["x"]], [center["y"]], [height(center)]
            scene.plot(*at, color=_CENTER, markeredgewidth=0.5, zorder=4, **dot)
        label = {"fontsize": _SMALL - 0.5, "labelpad": -5, "linespacing": 1.2}
        scene.set_xlabel(_direction(data, 0, has_details=False), **label)
        scene.set_ylabel(_direction(data, 1, has_details=False), **label)
        scene.set_zlabel("loss", labelpad=-8, fontsize=_SMALL)
        scene.tick_params(pad=-4, labelsize=_SMALL - 1)
        scene.view_init(elev=32, azim=-55)
        scene.set_box_aspect((1, 1, 0.62), zoom=0.8)
        for axis in (scene.xaxis, scene.yaxis, scene.zaxis):
            axis.pane.set_alpha(0.0)
            axis.set_major_locator(_few_ticks())
            axis._axinfo["grid"].update(color="0.85", linewidth=0.4)  # noqa: SLF001 - no public way
        mappable = ScalarMappable(norm, colors)
        ends = "max" if is_cut else "neither"
        # At the left, where no title of an axis is.
        place: dict[str, Any] = {"location": "left", "aspect": 22, "shrink": 0.65, "pad": 0.0}
        bar = figure.colorbar(mappable, ax=scene, extend=ends, **place)
        _label_bar(bar, "loss")
        _ticks(bar.ax.yaxis, low, high)
    return figure


def _curve_of_losses(data: Mapping[str, Any], width: float) -> Figure:
    with _styled(width, _GOLDEN * width) as (figure, axes):
        losses = [float("nan") if each is None else each for each in data["loss"][0]]
        axes.plot(data["x"], losses, color=_COLORS[0])
        for feature in data.get("features") or ():
            mark = _MARKERS.get(feature["kind"])
            if mark and feature["loss"] is not None:
                axes.plot(feature["x"], feature["loss"], mark, color="k", markersize=4)
        center = data["center"]
        if center.get("loss") is not None:
            axes.plot(center["x"], center["loss"], "o", color=_CENTER, markersize=4)
        axes.set_xlabel(_direction(data, 0))
        axes.set_ylabel("loss")
        axes.grid(axis="y", color="0.9", linewidth=0.5)
    return figure


def _draw_arrows(axes: Any, data: Mapping[str, Any]) -> None:
    """The negative gradient; the square root keeps small ones visible."""
    arrows = [each for each in data.get("arrows") or () if all(map(isfinite, each))]
    spans = data["x"][-1] - data["x"][0], data["y"][-1] - data["y"][0]
    sizes = [((dx / spans[0]) ** 2 + (dy / spans[1]) ** 2) ** 0.25 for _, _, dx, dy in arrows]
    largest = max(sizes, default=0.0)
    if not largest:
        return
    length = 0.8 / max(2.0, len(arrows) ** 0.5) / largest
    moves = [
        (length * dx / spans[0] / size, length * dy / spans[1] / size) if size else (0.0, 0.0)
        for (_, _, dx, dy), size in zip(arrows, sizes, strict=True)
    ]
    places = [each[0] for each in arrows], [each[1] for each in arrows]
    # In shares of the axes, so that the arrows have the direction that they have in the picture.
    us = [spans[0] * u for u, _ in moves]
    vs = [spans[1] * v for _, v in moves]
    shape = {"angles": "xy", "scale_units": "xy", "scale": 1, "pivot": "mid"}
    axes.quiver(*places, us, vs, color="w", alpha=0.75, width=0.003, headwidth=4.5, **shape)


def _draw_marks(axes: Any, data: Mapping[str, Any]) -> None:
    """The path of the weights with its start, features and the weights themselves."""
    from matplotlib.patheffects import withStroke  # noqa: PLC0415

    outline = [withStroke(linewidth=1.9, foreground="k", alpha=0.6)]
    path = data.get("trajectory") or []
    if path:
        xs, ys = [each["x"] for each in path], [each["y"] for each in path]
        line = {"color": _PATH, "path_effects": outline}
        axes.plot(xs, ys, marker="o", markersize=1.5, linewidth=0.9, **line)
        axes.plot(xs[:1], ys[:1], "o", fillstyle="none", markersize=5.5, markeredgewidth=1, **line)
    edge = {"markeredgecolor": "k", "markeredgewidth": 0.6, "color": "w"}
    for feature in data.get("features") or ():
        mark = _MARKERS.get(feature["kind"])
        if mark and _is_inside(data, feature):
            axes.plot(feature["x"], feature["y"], mark, markersize=4.5, **edge)
    center = data.get("center")
    if center and _is_inside(data, center):
        dot = {"markersize": 4.5, "markeredgecolor": "w", "markeredgewidth": 0.9}
        axes.plot(center["x"], center["y"], "o", color=_CENTER, **dot)


def _direction(data: Mapping[str, Any], index: int, *, has_details: bool = True) -> str:
    """What an axis is, and what its coordinate 1 means."""
    directions = data.get("directions") or []
    if index >= len(directions):
        return ["first direction", "second direction"][index]
    direction = directions[index]
    name = str(direction.get("name") or direction.get("kind") or "direction")
    if name in {"x", "y"}:
        name = str(direction["kind"])
    name = name.replace(" of the trajectory", "").replace(" of the Hessian", "")
    details = []
    if direction.get("explained") is not None:
        details.append(f"{100 * direction['explained']:.0f} % of the path")
    if direction.get("eigenvalue") is not None:
        details.append(f"eigenvalue {direction['eigenvalue']:.3g}")
    lines = [name + (f" ({', '.join(details)})" if details and has_details else "")]
    norm, whole = direction.get("norm"), data.get("weights_norm")
    if norm is not None:
        share = f", {100 * norm / whole:.2g} % of the weights" if whole else ""
        lines.append(f"1 = {norm:.3g} (L2){share}")
    return "\n".join(lines)


def _limits(data: Mapping[str, Any]) -> tuple[float, float, bool]:
    """The ends of the scale of a surface and its parts, and whether it is cut off above."""
    losses = sorted(
        each
        for part in _surface_parts(data)
        for row in part["loss"]
        for each in row
        if each is not None
    )
    if not losses:
        raise ValueError("The loss is not finite anywhere on this surface, so it has no figure.")
    low, high, top = losses[0], losses[-1], losses[int(len(losses) * _TOP_QUANTILE)]
    if top > low and high - low > _OUTLIER_FACTOR * (top - low):
        return low, top, True
    # The interpolation of a constant loss differs in the last digit.
    return low, max(high, low + (abs(low) or 1.0) * 1e-6), False


def _has_holes(data: Mapping[str, Any]) -> bool:
    return any(each is None for row in data["loss"] for each in row)


def _surface_parts(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The surface, and the parts of it that were evaluated at more points, the finest last."""
    return [data, *(data.get("regions") or ())]


def _interior(values: Any, axis: Sequence[float]) -> Any:
    """Which values, an array, are between the ends of the axis, and none of them."""
    slack = 1e-6 * (axis[-1] - axis[0])
    return (values > axis[0] + slack) & (values < axis[-1] - slack)


def _is_inside(data: Mapping[str, Any], place: Mapping[str, Any]) -> bool:
    for axis in ("x", "y"):
        low, high = data[axis][0], data[axis][-1]
        slack = 1e-6 * (high - low)
        if place.get(axis) is None or not low - slack <= place[axis] <= high + slack:
            return False
    return True


# Paths of the weights, and importance


def _paths(data: Mapping[str, Any], width: float) -> Figure:
    runs = [
        {**each, "places": places}
        for each in data["runs"]
        if (places := _places(each["x"], each["y"], each["steps"]))
    ]
    if not runs:
        raise ValueError("The trajectory has no points, so it has no figure.")
    with _styled(width, 0.82 * width) as (figure, axes):
        for index, run in enumerate(runs):
            xs, ys, steps = zip(*run["places"], strict=True)
            color = "0.45" if len(runs) == 1 else _COLORS[index % len(_COLORS)]
            dash = _DASHES[index % len(_DASHES)] if len(runs) > 1 else "-"
            axes.plot(xs, ys, color=color, linestyle=dash, linewidth=0.8, label=run["name"])
            if len(runs) == 1:
                dots = axes.scatter(xs, ys, c=steps, cmap=_color_map("cividis"), s=6, zorder=3)
                _label_bar(figure.colorbar(dots, ax=axes, aspect=24, pad=0.02), "step")
                color = "k"
            axes.plot(xs[0], ys[0], "o", fillstyle="none", color=color, markersize=5, zorder=4)
            axes.plot(xs[-1], ys[-1], "D", color=color, markersize=4, zorder=4)
        reference = data.get("reference")
        if reference:
            axes.plot(reference["x"], reference["y"], "*", color=_CENTER, markersize=7)
        shares = [*(data.get("explained") or ()), None, None]
        for number, label in enumerate((axes.set_xlabel, axes.set_ylabel)):
            share = shares[number]
            part = "" if share is None else f" ({100 * share:.0f} % of the movement)"
            label(f"component {number + 1}{part}, L2", fontsize=_SMALL)
        axes.set_aspect("equal", adjustable="datalim")
        axes.grid(color="0.9", linewidth=0.5)
        _add_legend(axes, len(runs))
    return figure


def _importance(data: Mapping[str, Any], width: float) -> Figure:
    rows = [each for each in data["settings"] if each.get("importance") is not None]
    rows = rows[:_MAX_SETTINGS]
    if not rows:
        raise ValueError(
            "No importance was estimated, so it has no figure: there are too few runs."
        )
    with _styled(width, 0.75 + 0.2 * len(rows)) as (figure, axes):
        values = [each["importance"] for each in rows]
        spreads = [
            [max(0.0, each["importance"] - each["low"]) for each in rows],
            [max(0.0, each["high"] - each["importance"]) for each in rows],
        ]
        error = {"elinewidth": 0.8, "capsize": 2, "capthick": 0.8}
        places = range(len(rows))
        axes.barh(places, values, color="#56b4e9", height=0.62, xerr=spreads, error_kw=error)
        names = [", ".join([each["name"], *(each.get("same_as") or ())]) for each in rows]
        axes.set_yticks([*places], [_end_of(each) for each in names])
        axes.invert_yaxis()
        axes.axvline(0, color="0.4", linewidth=0.6)
        axes.set_xlabel(f"share of the variance of {data['outcome']},\nwith 95 % interval")
        axes.tick_params(axis="y", length=0)
    return figure


# Matplotlib


@contextmanager
def _style() -> Iterator[None]:
    try:
        import matplotlib.style  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise ImportError(
            "Figures need Matplotlib: pip install 'train-sentinel[figures]'."
        ) from None
    # Settings of the user do not count.
    with matplotlib.style.context(["default", _STYLE]):
        yield


@contextmanager
def _styled(
    width: float, height: float, projection: str | None = None
) -> Iterator[tuple[Figure, Any]]:
    """A figure and its axes, whose many keywords are not checked."""
    with _style():
        from matplotlib.figure import Figure  # noqa: PLC0415

        if projection == "3d":
            import mpl_toolkits.mplot3d  # noqa: F401, PLC0415 - registers the projection
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.add_subplot(projection=projection)


def _color_map(name: str) -> Any:
    import matplotlib as mpl  # noqa: PLC0415

    return mpl.colormaps[name]


def _label_bar(bar: Any, text: str) -> None:
    bar.set_label(text)
    bar.outline.set_linewidth(0.0)
    if bar.solids is not None:
        # Many colours would be an image.
        bar.solids.set_rasterized(False)
        bar.solids.set_edgecolor("face")
    bar.ax.tick_params(length=2)


def _few_ticks() -> Any:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    return MaxNLocator(4)


def _ticks(axis: Any, low: float, high: float) -> None:
    """About five round ticks within the range."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    axis.set_ticks([each for each in MaxNLocator(5).tick_values(low, high) if low <= each <= high])


def _edges(steps: Sequence[float]) -> list[float]:
    """The borders of columns that end at these steps."""
    first = steps[0] - (steps[1] - steps[0] if len(steps) > 1 else 1)
    return [first, *steps]


def _end_of(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CHARS else f"…{name[1 - _MAX_NAME_CHARS :]}"


def _places(
    xs: Sequence[Any], ys: Sequence[Any], steps: Sequence[Any]
) -> list[tuple[float, float, float]]:
    known = zip(xs, ys, steps, strict=True)
    return [(x, y, step) for x, y, step in known if None not in {x, y}]


def _parts(curve: Mapping[str, Any]) -> tuple[list[float], ...]:
    """x, mean, lowest and highest values, with a gap where another attempt begins."""
    columns: tuple[list[float], ...] = ([], [], [], [])
    nan = float("nan")
    attempts = curve.get("attempt") or [0] * len(curve["x"])
    means = finite_values(list(curve["mean"]))
    lows, highs = (finite_values(list(curve.get(key) or means)) for key in ("min", "max"))
    before = None
    for x, attempt, *values in zip(curve["x"], attempts, means, lows, highs, strict=True):
        if before is not None and attempt != before:
            for column in columns:
                column.append(nan)
        before = attempt
        for column, value in zip(columns, (x, *values), strict=True):
            column.append(nan if value is None else value)
    return columns
