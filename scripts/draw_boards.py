"""Draw each Grafana dashboard from the data of its queries: a sketch, not a picture of Grafana.

    python scripts/draw_boards.py FOLDER

Executes every query of the open panels on a Prometheus that holds the hour of the scenario of the
tests, and writes one PNG a dashboard. Layout, titles and data are those of the dashboard; colours,
axes and tables are simplified.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "stack")]
STEP_SECONDS = 30
WIDTH_INCHES, ROW_INCHES = 16.0, 0.3
MAX_TABLE_COLUMNS, MAX_LEGENDS = 10, 6
COLUMNS = 24


def main() -> None:
    """Write the pictures."""
    from dashboards import DASHBOARDS
    from hour import prometheus_of_the_hour

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    mpl.rcParams.update({"font.size": 6, "axes.titlesize": 7, "axes.titleweight": "bold"})
    with (
        tempfile.TemporaryDirectory(prefix="sentinel-boards-") as scratch,
        prometheus_of_the_hour(Path(scratch)) as prometheus,
    ):
        for name, board in DASHBOARDS.items():
            draw(board, prometheus).savefig(folder / f"{name}.png", dpi=110)
            print(folder / f"{name}.png", flush=True)


def draw(board: dict[str, Any], prometheus: Any) -> Figure:
    """The open panels of a dashboard, at their places."""
    places = list(_places(board["panels"]))
    rows = max(top + height for _, top, height in places)
    figure = Figure(figsize=(WIDTH_INCHES, rows * ROW_INCHES))
    title = f"{board['title']}: drawn from its queries, not by Grafana"
    figure.text(0.005, 1 - 1 / rows, title, fontsize=11, weight="bold")
    for panel, top, height in places:
        place = panel["gridPos"]
        if panel["type"] == "row":
            mark = ">" if panel["collapsed"] else "v"
            figure.text(0.005, 1 - (top + 0.8) / rows, f"{mark} {panel['title']}", weight="bold")
            continue
        margins = (0.03, 1.1) if panel["type"] in {"timeseries", "heatmap"} else (0.005, 0.2)
        left, width = place["x"] / COLUMNS + margins[0], place["w"] / COLUMNS - margins[0] - 0.005
        bottom = 1 - (top + height - margins[1]) / rows
        axes = figure.add_axes((left, bottom, width, (height - margins[1] - 0.9) / rows))
        axes.set_title(panel["title"], loc="left", pad=2)
        _DRAWERS[panel["type"]](axes, panel, list(_results(panel, prometheus)))
    return figure


def _places(panels: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Each open panel with its first row of the grid and its height; two rows are the title's."""
    hidden = -2
    for panel in panels:
        place = panel["gridPos"]
        yield panel, place["y"] - hidden, place["h"]
        inner = [each["gridPos"] for each in panel.get("panels") or ()]
        if inner:
            hidden += max(each["y"] + each["h"] for each in inner) - place["y"] - 1


def _results(panel: dict[str, Any], prometheus: Any) -> Iterator[list[dict[str, Any]]]:
    """The series of each query of the panel."""
    from dashboards import with_variables
    from hour import HOUR
    from scenario import END, START

    for target in panel["targets"]:
        runs = ".*" if 'run=~"$run"' in target["expr"] else HOUR["$run"]
        expr = with_variables(target["expr"], HOUR | {"$run": runs})
        if target["instant"]:
            yield prometheus.instant_query(expr, END)
        else:
            yield prometheus.range_query(expr, START, END, STEP_SECONDS)


def _legend(series: dict[str, Any], target: dict[str, Any]) -> str:
    text = str(target["legendFormat"])
    for name, value in series["metric"].items():
        text = text.replace(f"{{{{{name}}}}}", value)
    return text


def _values(series: dict[str, Any]) -> np.ndarray:
    """Times in minutes and values; shape (samples, 2)."""
    values = np.array(series["values"], dtype=float)
    return (values - [values[0, 0], 0]) / [60, 1]


def _draw_number(axes: Any, panel: dict[str, Any], results: list[list[dict[str, Any]]]) -> None:
    axes.set_axis_off()
    shown = "no data"
    for series in results[0]:
        is_name = panel["options"].get("textMode") == "name"
        shown = _legend(series, panel["targets"][0]) if is_name else _number(series)
    axes.text(0.5, 0.45, f"{shown} {_unit(panel)}", ha="center", va="center", fontsize=11)


def _number(series: dict[str, Any]) -> str:
    return f"{float(series['value'][1]):.4g}"


def _unit(panel: dict[str, Any]) -> str:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    return "" if unit in {"short", "none"} else f"({unit})"


def _draw_lines(axes: Any, panel: dict[str, Any], results: list[list[dict[str, Any]]]) -> None:
    for target, found in zip(panel["targets"], results, strict=True):
        for series in found:
            is_threshold = "detector_threshold" in target["expr"]
            style = {"linestyle": "--", "color": "red"} if is_threshold else {}
            axes.plot(*_values(series).T, label=_legend(series, target), linewidth=0.8, **style)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[:MAX_LEGENDS], labels[:MAX_LEGENDS], fontsize=5, loc="upper left")
    axes.set_ylabel(_unit(panel))


def _draw_rows(axes: Any, panel: dict[str, Any], results: list[list[dict[str, Any]]]) -> None:
    """A row per series with its values as colours."""
    (found,), (target,) = results, panel["targets"]
    has_buckets = target.get("format") == "heatmap"
    if has_buckets:
        found = sorted(found, key=lambda series: float(series["metric"]["le"]))
    first = min(series["values"][0][0] for series in found)
    last = max(series["values"][-1][0] for series in found)
    grid = np.full((len(found), int((last - first) / STEP_SECONDS) + 1), np.nan)
    for row, series in zip(grid, found, strict=True):
        for time, value in series["values"]:
            row[int((time - first) / STEP_SECONDS)] = float(value)
    if has_buckets:
        grid = np.diff(grid, axis=0, prepend=0)
    axes.imshow(grid, aspect="auto", interpolation="nearest", origin="lower", **_colours(panel))
    axes.set_xticks([])
    axes.set_yticks(range(len(found)), [_legend(series, target) for series in found])
    if panel["type"] != "heatmap":
        axes.tick_params(axis="y", direction="in", pad=-4)
        for label in axes.get_yticklabels():
            label.set_horizontalalignment("left")


def _colours(panel: dict[str, Any]) -> dict[str, Any]:
    """Colour map and its range, for imshow."""
    mappings = panel["fieldConfig"]["defaults"].get("mappings")
    if not mappings:
        return {"cmap": "Oranges", "vmin": 0}
    states = mappings[0]["options"]
    is_bad_low = states["0"]["color"] == "red"
    return {"cmap": "RdYlGn" if is_bad_low else "RdYlGn_r", "vmin": 0, "vmax": len(states) - 1}


def _draw_table(axes: Any, panel: dict[str, Any], results: list[list[dict[str, Any]]]) -> None:
    """Rows of the first query; the values of the others are joined by the labels of both."""
    axes.set_axis_off()
    settings = panel["transformations"][1]["options"]
    titles = settings["renameByName"]
    order = sorted(titles, key=settings["indexByName"].__getitem__)
    columns = [name for name in order if not name.startswith("Value")]
    cells = []
    for row in results[0]:
        values = [row["metric"].get(name, "") for name in columns]
        for found in results[1:]:
            joined = [s for s in found if s["metric"].items() <= row["metric"].items()]
            values.append(_number(joined[0]) if joined else "")
        cells.append(values)
    heads = [titles[name] for name in columns] + [
        titles[name] for name in order if name.startswith("Value")
    ]
    if cells:
        table = axes.table(cells, colLabels=heads, loc="upper center", cellLoc="left")
        table.auto_set_font_size(False)


def _draw_text(axes: Any, panel: dict[str, Any], _results: list[list[dict[str, Any]]]) -> None:
    axes.set_axis_off()
    axes.text(0, 0.5, panel["options"]["content"], wrap=True)


_DRAWERS = {
    "stat": _draw_number,
    "timeseries": _draw_lines,
    "heatmap": _draw_rows,
    "state-timeline": _draw_rows,
    "table": _draw_table,
    "text": _draw_text,
}


if __name__ == "__main__":
    main()
