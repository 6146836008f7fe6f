"""Draw each Grafana dashboard from the data of its queries.

    python scripts/draw_boards.py [FOLDER]

Executes the queries, annotations and variables of the open panels on a Prometheus that holds the
scenario of the tests, and writes one PNG a dashboard to docs/pictures or to FOLDER. Layout, titles,
units, thresholds and data are those of the dashboard. The pictures state that Grafana did not make
them: fonts, axes and colours of series are not its own.
"""

from __future__ import annotations

import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import cycle, pairwise
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "stack")]

from dashboards import DASHBOARDS, with_variables  # noqa: E402
from filled_prometheus import VALUES, filled_prometheus  # noqa: E402
from scenario import END, RUN_BY_BOARD, SCRAPE_SECONDS, START  # noqa: E402

COLUMNS = 24
WIDTH_PIXELS, ROW_PIXELS, HEADER_PIXELS = 1440, 33, 84
DPI = 100
MAX_LEGENDS, MAX_LABELS, MAX_NAME = 6, 16, 26
EXPANDED = {"system"}
"""Boards whose collapsed rows are drawn open."""
NOTICE = "Rendered by sentinel's tools from the executed queries, not by Grafana"

BACKGROUND, PANEL, EDGE, TEXT, MUTED, GRID = (
    *("#111217", "#181b1f", "#2c3036", "#d5d6de", "#8e9199", "#2a2d33"),
)
COLOURS = {
    "green": "#56a64b", "orange": "#ff9830", "red": "#e0455a", "blue": "#5794f2",
    "purple": "#b877d9", "yellow": "#f2cc0c", "super-light-blue": "#c0d8ff", "text": TEXT,
}  # fmt: skip
SERIES = (
    *("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9"),
    *("#37872d", "#fade2a", "#c4162a", "#1f60c4", "#8f3bb8", "#96d98d", "#ffb357"),
)


class Box(NamedTuple):
    """A rectangle in pixels from the top left corner of a picture."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """Height of a text in the middle, below a title."""
        return self.y + self.height / 2 + 10

    @property
    def bottom(self) -> float:
        return self.y + self.height


class Frame(NamedTuple):
    """A series with its name as a panel shows it, and the query that it is of."""

    name: str
    target: Mapping[str, Any]
    labels: Mapping[str, str]
    times: np.ndarray
    values: np.ndarray


class Marks(NamedTuple):
    """The times of an annotation, in minutes since the start, its name and its colour."""

    name: str
    colour: str
    times: list[float]


def main() -> None:
    """Write the pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    mpl.rcParams.update(
        {
            "font.size": 7.5,
            "font.family": "DejaVu Sans",
            "text.color": TEXT,
            "axes.edgecolor": GRID,
            "axes.labelcolor": MUTED,
            "axes.facecolor": PANEL,
            "xtick.color": MUTED,
            "ytick.color": MUTED,
            "axes.grid": True,
            "grid.color": GRID,
            "grid.linewidth": 0.6,
        }
    )
    with (
        tempfile.TemporaryDirectory(prefix="sentinel-boards-") as scratch,
        filled_prometheus(Path(scratch)) as prometheus,
    ):
        for name, board in DASHBOARDS.items():
            runs = ".*" if name == "fleet" else RUN_BY_BOARD.get(name, VALUES["$run"])
            picture = Picture(board, prometheus, VALUES | {"$run": runs}, name in EXPANDED)
            path = folder / f"board-{name}.png"
            picture.draw().savefig(path, dpi=DPI, facecolor=BACKGROUND)
            # A palette makes the file three times smaller. This method keeps the surfaces exact.
            drawn = Image.open(path).convert("RGB")
            drawn.quantize(192, Image.Quantize.MEDIANCUT, kmeans=1).save(path, optimize=True)
            print(path, path.stat().st_size // 1024, "KB", flush=True)


class Picture:
    """The open panels of a dashboard at their places, with the data of a Prometheus."""

    def __init__(
        self, board: dict[str, Any], prometheus: Any, values: Mapping[str, str], expand: bool
    ) -> None:
        self._board, self._prometheus, self._values = board, prometheus, values
        self._places = list(_places(board["panels"], expand=expand))
        rows = max(top + panel["gridPos"]["h"] for panel, top, _ in self._places)
        self._height = HEADER_PIXELS + rows * ROW_PIXELS + 8
        self._figure = Figure(figsize=(WIDTH_PIXELS / DPI, self._height / DPI))
        self._marks = [self._read_marks(each) for each in board["annotations"]["list"]]

    def draw(self) -> Figure:
        """The whole board."""
        self._draw_header()
        for panel, top, is_open in self._places:
            place = panel["gridPos"]
            x, y = place["x"] * WIDTH_PIXELS / COLUMNS, HEADER_PIXELS + top * ROW_PIXELS
            width, height = place["w"] * WIDTH_PIXELS / COLUMNS, place["h"] * ROW_PIXELS
            if panel["type"] == "row":
                arrow = "▾" if is_open else "▸"
                count = "" if is_open else f"   ({len(panel['panels'])} panels)"
                self._text(x + 12, y + 22, f"{arrow} {panel['title']}{count}", 9, weight="bold")
            else:
                self._draw_panel(panel, Box(x + 4, y + 4, width - 8, height - 8))
        return self._figure

    def _draw_header(self) -> None:
        self._text(14, 30, self._board["title"], 15, weight="bold")
        self._text(WIDTH_PIXELS - 14, 28, NOTICE, 8.5, color=MUTED, ha="right", style="italic")
        at = 14.0
        shown = {"$run": self._values["$run"], "datasource": "Prometheus"}
        for variable in self._board["templating"]["list"]:
            name = variable["name"]
            value = shown.get(name) or shown.get(f"${name}") or "All"
            if name == "page":
                continue
            value = "All" if value == ".*" else value
            text = self._text(at, 64, f"{variable['label']}  ", 8, color=MUTED)
            at += 5.4 * len(text.get_text()) + 2
            self._box(Box(at, 50, 7.2 * len(value) + 16, 22), "#22252b", EDGE)
            self._text(at + 8, 64, value, 8)
            at += 7.2 * len(value) + 34
        for marks in self._marks:
            self._text(at, 64, "┆", 10, color=marks.colour, weight="bold")
            text = self._text(at + 10, 64, marks.name, 8, color=MUTED)
            at += 7 * len(text.get_text()) + 28
        first, last = (datetime.fromtimestamp(t, UTC) for t in (START, END))
        self._text(WIDTH_PIXELS - 14, 64, f"{first:%Y-%m-%d %H:%M} to {last:%H:%M}", 8, ha="right")

    def _draw_panel(self, panel: dict[str, Any], box: Box) -> None:
        frames = self._read(panel)
        is_coloured = panel["type"] == "stat" and frames
        self._box(box, _background(panel, frames[-1]) if is_coloured else PANEL, EDGE)
        self._text(box.x + 9, box.y + 17, panel["title"], 8.5, weight="bold")
        if panel["type"] == "text":
            links_and_code = re.compile(r"\[(.+?)\]\(.+?\)|`")
            plain = links_and_code.sub(lambda match: match[1] or "", panel["options"]["content"])
            lines = "\n".join(textwrap.wrap(plain, 200))
            self._text(box.x + 12, box.y + 34, lines, 8, color=MUTED, va="top")
        elif not frames:
            empty = panel["fieldConfig"]["defaults"].get("noValue", "No data")
            self._text(box.x + box.width / 2, box.middle, empty, 11, color=MUTED, ha="center")
        elif panel["type"] == "stat":
            self._draw_stat(panel, frames[-1], box)
        elif panel["type"] == "table":
            self._draw_table(panel, frames, box)
        else:
            self._draw_chart(panel, frames, box)

    def _draw_stat(self, panel: dict[str, Any], frame: Frame, box: Box) -> None:
        shown = frame.name
        if panel["options"]["textMode"] != "name":
            shown = with_unit(frame.values[-1], panel["fieldConfig"]["defaults"]["unit"])
        size = min(19.0, 1.5 * box.width / max(len(shown), 4))
        self._text(box.x + box.width / 2, box.middle + 8, shown, size, ha="center", weight="bold")

    def _draw_chart(self, panel: dict[str, Any], frames: list[Frame], box: Box) -> None:
        left, below = (66, 44) if panel["type"] == "timeseries" else (74, 22)
        right = 84 if panel["type"] == "heatmap" else 14
        if panel["type"] == "state-timeline":
            left = 20 + 5.6 * min(MAX_NAME, max(len(each.name) for each in frames))
            below = 44
        place = Box(box.x + left, box.y + 30, box.width - left - right, box.height - below - 30)
        axes = self._figure.add_axes(self._place(place))
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.tick_params(length=0)
        _DRAWERS[panel["type"]](axes, panel, frames)
        axes.set_xlim(0, (END - START) / 60)
        ticks = 5 if box.width < 700 else 9
        axes.xaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 3, 6, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(_clock))
        if panel["type"] == "timeseries":
            for marks in self._marks:
                for time in marks.times:
                    style = {"linestyle": (0, (2, 3)), "linewidth": 0.8, "alpha": 0.75}
                    axes.axvline(time, color=marks.colour, zorder=1, **style)
        self._draw_legend(_legend(panel, frames), box.x + 12, box.bottom - 12, box.width - 24)

    def _draw_legend(self, entries: list[tuple[str, str]], x: float, y: float, room: float) -> None:
        at, shown = x, 0
        for name, colour in entries[:MAX_LEGENDS]:
            length = 5.2 * len(name) + 28
            if at + length > x + room - 60 and shown:
                break
            self._text(at, y, "—", 9, color=colour, weight="bold")
            self._text(at + 15, y, name, 7.2, color=MUTED)
            at, shown = at + length, shown + 1
        if shown < len(entries):
            self._text(at, y, f"+ {len(entries) - shown} more", 7.2, color=MUTED)

    def _draw_table(self, panel: dict[str, Any], frames: list[Frame], box: Box) -> None:
        x, y, width, height = box
        titles, rows = _table(panel, frames)
        linked = {
            each["matcher"]["options"]
            for each in panel["fieldConfig"]["overrides"]
            if any(one["id"] == "links" for one in each["properties"])
        }
        lengths = [
            max(map(len, (title, *cells))) + 3 for title, *cells in zip(titles, *rows, strict=True)
        ]
        edges = np.concatenate([[0.0], np.cumsum(lengths)]) / sum(lengths) * (width - 24)
        visible = int((height - 52) // 20)
        colours = _cell_colours(panel)
        for column, title in enumerate(titles):
            self._text(x + 12 + edges[column], y + 42, title, 7.8, color="#8ab8ff", weight="bold")
            for number, row in enumerate(rows[:visible]):
                line = y + 62 + 20 * number
                colour = colours.get((title, row[column]), "#6e9fff" if title in linked else TEXT)
                self._text(x + 12 + edges[column], line, row[column], 7.8, color=colour)
        for number in range(min(len(rows), visible)):
            self._line(x + 10, x + width - 10, y + 48 + 20 * number)
        if len(rows) > visible:
            more = f"{len(rows) - visible} more"
            self._text(x + width - 12, y + 17, more, 7.5, color=MUTED, ha="right")

    def _read(self, panel: dict[str, Any]) -> list[Frame]:
        frames = []
        for target in panel.get("targets", ()):
            expr = with_variables(target["expr"], self._values)
            if target["instant"]:
                found = self._prometheus.instant_query(expr, END)
            else:
                found = self._prometheus.range_query(expr, START, END, SCRAPE_SECONDS)
            for series in found:
                samples = np.array(series.get("values", [series.get("value")]), dtype=float)
                times = (samples[:, 0] - START) / 60
                name = _name(series["metric"], target)
                frames.append(Frame(name, target, series["metric"], times, samples[:, 1]))
        return frames

    def _read_marks(self, annotation: dict[str, Any]) -> Marks:
        """Where a series begins, or the times that it returns."""
        expr = with_variables(annotation["expr"], self._values)
        found = self._prometheus.range_query(expr, START, END, SCRAPE_SECONDS)
        if annotation["useValueForTime"]:
            seconds = {float(value) / 1e3 for one in found for _, value in one["values"]}
        else:
            seconds = {one["values"][0][0] for one in found}
        times = sorted((each - START) / 60 for each in seconds)
        return Marks(annotation["name"], COLOURS[annotation["iconColor"]], times)

    def _text(self, x: float, y: float, text: str, size: float, **style: Any) -> Any:
        return self._figure.text(
            x / WIDTH_PIXELS, 1 - y / self._height, text, fontsize=size, **style
        )

    def _line(self, left: float, right: float, y: float) -> None:
        at = 1 - y / self._height
        line = mpl.lines.Line2D([left / WIDTH_PIXELS, right / WIDTH_PIXELS], [at, at])
        line.set(color=EDGE, linewidth=0.6, transform=self._figure.transFigure)
        self._figure.add_artist(line)

    def _box(self, box: Box, face: str, edge: str) -> None:
        x, y, width, height = self._place(box)
        shape = Rectangle((x, y), width, height, facecolor=face, edgecolor=edge, linewidth=0.8)
        shape.set(transform=self._figure.transFigure, zorder=-1)
        self._figure.add_artist(shape)

    def _place(self, box: Box) -> tuple[float, float, float, float]:
        """In fractions of the picture, from its lower left corner."""
        bottom = 1 - box.bottom / self._height
        width, height = box.width / WIDTH_PIXELS, box.height / self._height
        return box.x / WIDTH_PIXELS, bottom, width, height


def _places(
    panels: list[dict[str, Any]], *, expand: bool
) -> Iterator[tuple[dict[str, Any], int, bool]]:
    """Each drawn panel with its first row of the grid, and whether it is open."""
    shift = 0
    for panel in panels:
        place, inner = panel["gridPos"], panel.get("panels") or []
        is_open = expand or not panel.get("collapsed")
        yield panel, place["y"] + shift, is_open
        if inner and is_open:
            for each in inner:
                yield each, each["gridPos"]["y"] + shift, True
        elif inner:
            ends = [each["gridPos"]["y"] + each["gridPos"]["h"] for each in inner]
            shift -= max(ends) - place["y"] - 1


def _name(labels: Mapping[str, str], target: Mapping[str, Any]) -> str:
    return re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), target["legendFormat"])


def _clock(minutes: float, _: int = 0) -> str:
    return f"{datetime.fromtimestamp(START + 60 * minutes, UTC):%H:%M}"


SCALES: Mapping[str, tuple[tuple[float, str], ...]] = {
    "percentunit": ((0.01, "%"),),
    "s": ((86400, " d"), (3600, " h"), (60, " min"), (1, " s"), (1e-3, " ms")),
    "bytes": ((2.0**40, " TiB"), (2.0**30, " GiB"), (2.0**20, " MiB"), (1, " B")),
    "Bps": ((1e9, " GB/s"), (1e6, " MB/s"), (1e3, " kB/s"), (1, " B/s")),
}
"""Sizes and symbols of units, the largest first; a value has that of the largest size below it."""
SHORT_SCALE = ((1e9, " Bil"), (1e6, " Mil"), (1e3, " K"), (1, ""))
SYMBOLS = {"watt": " W", "celsius": " °C", "cpm": " c/min", "pps": " p/s"}


def with_unit(value: float, unit: str) -> str:
    """A value as Grafana shows it in that unit.

    >>> with_unit(0.5, "percentunit"), with_unit(93.0, "s"), with_unit(3e9, "bytes")
    ('50%', '1.55 min', '2.79 GiB')
    """
    if not isfinite(value) or unit in {"none", "sci"}:
        return f"{value:.6g}"
    scale = SCALES.get(unit, SHORT_SCALE)
    # A number of steps or tokens is more readable in full.
    if scale is SHORT_SCALE and 1 <= abs(value) < 1e4:
        scale = scale[-1:]
    size, symbol = next((each for each in scale if abs(value) >= each[0]), scale[-1])
    after = unit.removeprefix("suffix:") if unit.startswith("suffix:") else SYMBOLS.get(unit, "")
    digits = 4 if size == 1 else 3
    return f"{value / size:.{digits}g}{symbol}{after}" if value else f"0{scale[-1][1]}{after}"


def _background(panel: dict[str, Any], frame: Frame) -> str:
    """Colour of a stat."""
    if panel["options"]["colorMode"] != "background":
        return PANEL
    for name, properties in _overrides(panel, frame):
        if name == "color":
            return COLOURS[properties["fixedColor"]]
    colour = _threshold_colour(panel, frame.values[-1])
    return PANEL if colour == TEXT else colour


def _threshold_colour(panel: dict[str, Any], value: float) -> str:
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    reached = [each for each in steps if each["value"] is None or value >= each["value"]]
    return COLOURS[reached[-1]["color"]]


def _overrides(panel: dict[str, Any], frame: Frame) -> Iterator[tuple[str, Any]]:
    """Properties of the panel that apply to a series."""
    for override in panel["fieldConfig"]["overrides"]:
        matcher = override["matcher"]
        if matcher["options"] in {
            "byName": (frame.name,),
            "byFrameRefID": (frame.target["refId"],),
        }.get(matcher["id"], ()):
            yield from ((each["id"], each["value"]) for each in override["properties"])


def _series_colours(panel: dict[str, Any], frames: list[Frame]) -> list[str]:
    free = cycle(SERIES)
    colours = []
    for frame in frames:
        fixed = dict(_overrides(panel, frame)).get("color")
        colours.append(COLOURS[fixed["fixedColor"]] if fixed else next(free))
    return colours


def _legend(panel: dict[str, Any], frames: list[Frame]) -> list[tuple[str, str]]:
    if panel["type"] == "timeseries":
        names = [each.name for each in frames]
        return [*dict(zip(names, _series_colours(panel, frames), strict=True)).items()]
    if panel["type"] == "state-timeline":
        return [(text, colour) for text, colour in _states(panel).values()]
    return []


def _cell_colours(panel: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Colours of the texts of a table, by the title of the column and the text."""
    return {
        (each["matcher"]["options"], text): COLOURS[result["color"]]
        for each in panel["fieldConfig"]["overrides"]
        for one in each["properties"]
        if one["id"] == "mappings"
        for text, result in one["value"][0]["options"].items()
    }


def _states(panel: dict[str, Any]) -> dict[float, tuple[str, str]]:
    """Text and colour by the value from which on they apply."""
    defaults = panel["fieldConfig"]["defaults"]
    if mappings := defaults.get("mappings"):
        options = mappings[0]["options"].items()
        return {float(key): (each["text"], COLOURS[each["color"]]) for key, each in options}
    steps = defaults["thresholds"]["steps"]
    return {
        start: (f"from {with_unit(start, defaults['unit'])}", COLOURS[each["color"]])
        for each in steps
        for start in (each["value"] or 0.0,)
    }


def _split(frame: Frame) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Times and values without gaps, in which Grafana draws no line."""
    breaks = np.flatnonzero(np.diff(frame.times) > 1.5 * SCRAPE_SECONDS / 60) + 1
    yield from zip(np.split(frame.times, breaks), np.split(frame.values, breaks), strict=True)


def _draw_lines(axes: Axes, panel: dict[str, Any], frames: list[Frame]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: with_unit(value, defaults["unit"]))
    )
    colours = _series_colours(panel, frames)
    if "stacking" in defaults["custom"]:
        grid = np.array([_on_grid(each) for each in frames])
        times = np.arange(grid.shape[1]) * SCRAPE_SECONDS / 60
        axes.stackplot(times, np.nan_to_num(grid), colors=colours, alpha=0.55, linewidth=0.6)
        return
    by_name = {each.name: each for each in frames}
    for frame, colour in zip(frames, colours, strict=True):
        properties = dict(_overrides(panel, frame))
        below = by_name.get(properties.get("custom.fillBelowTo", ""))
        if below is not None:
            edges = _on_grid(below), _on_grid(frame)
            times = np.arange(len(edges[0])) * SCRAPE_SECONDS / 60
            axes.fill_between(times, *edges, color=colour, alpha=0.25, linewidth=0)
        if properties.get("custom.lineWidth") == 0:
            continue
        is_dashed = "custom.lineStyle" in properties
        style = {"linestyle": "--" if is_dashed else "-", "linewidth": 1.1, "color": colour}
        for times, values in _split(frame):
            marker = {"marker": "."} if len(times) == 1 else {}
            axes.plot(times, values, zorder=2 if is_dashed else 3, **style, **marker)
    lowest = min(each.values.min() for each in frames)
    low, high = axes.get_ylim()
    if lowest >= 0 and (low < 0 or high > 4 * low):
        axes.set_ylim(0, high if high > lowest else 1)


def _on_grid(frame: Frame) -> np.ndarray:
    """The values at each scrape, NaN where there is none."""
    grid = np.full(round((END - START) / SCRAPE_SECONDS) + 1, np.nan)
    grid[np.round(frame.times * 60 / SCRAPE_SECONDS).astype(int)] = frame.values
    return grid


def _draw_heat_map(axes: Axes, panel: dict[str, Any], frames: list[Frame]) -> None:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    grid = np.array([_on_grid(each) for each in frames])
    if panel["targets"][0].get("format") == "heatmap":
        order = np.argsort([float(each.labels["le"]) for each in frames])
        frames = [frames[n] for n in order]
        grid = np.diff(np.nan_to_num(grid[order]), axis=0, prepend=0)
        used = np.flatnonzero(grid.max(axis=1) > 0)
        frames, grid = frames[used[0] : used[-1] + 1], grid[used[0] : used[-1] + 1]
        grid[grid <= 0] = np.nan
        labels = [f"≤ {with_unit(float(each.labels['le']), unit)}" for each in frames]
    else:
        labels = [each.name for each in frames]
    axes.grid(visible=False)
    # Dark is low, as in the dark theme of Grafana.
    colours = mpl.colormaps["Oranges_r"].with_extremes(bad=PANEL)
    extent = (-0.5, grid.shape[1] - 0.5, -0.5, len(frames) - 0.5)
    style = {"cmap": colours, "extent": extent, "interpolation": "nearest"}
    image = axes.imshow(np.ma.masked_invalid(grid), aspect="auto", origin="lower", **style)
    step = max(1, -(-len(labels) // MAX_LABELS))
    axes.set_yticks(range(0, len(labels), step), labels[::step])
    bar = axes.figure.colorbar(image, cax=axes.inset_axes((1.012, 0, 0.012, 1)))
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=7)
    bar.ax.grid(visible=False)
    bar_unit = panel["options"]["cellValues"]["unit"]
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: with_unit(value, bar_unit)))


def _draw_states(axes: Axes, panel: dict[str, Any], frames: list[Frame]) -> None:
    """A row per series, of bars without gaps while the state is the same."""
    states, has_values = _states(panel), panel["options"]["showValue"] != "never"
    axes.grid(visible=False)
    for row, frame in enumerate(reversed(frames)):
        minutes = SCRAPE_SECONDS / 60
        for times, values in _split(frame):
            changes = np.flatnonzero(np.diff(values)) + 1
            for first, last in pairwise([0, *changes, len(values)]):
                start, width = times[first], times[last - 1] - times[first] + minutes
                reached = max(each for each in states if values[first] >= each)
                axes.barh(row, width, 0.85, start, color=states[reached][1], alpha=0.85)
                if has_values and width > 6:
                    text = with_unit(values[first], panel["fieldConfig"]["defaults"]["unit"])
                    axes.text(start + 0.4, row, text, va="center", fontsize=7.5, color="#111217")
    step = max(1, -(-len(frames) // MAX_LABELS))
    names = [each.name[:MAX_NAME] for each in reversed(frames)]
    offset = (len(frames) - 1) % step
    axes.set_yticks(range(offset, len(frames), step), names[offset::step])
    axes.set_ylim(-0.6, len(frames) - 0.4)


def _table(panel: dict[str, Any], frames: list[Frame]) -> tuple[list[str], list[list[str]]]:
    """Titles, and rows of the first query with the values of the others joined by their labels."""
    settings = panel["transformations"][1]["options"]
    units = {
        each["matcher"]["options"]: one["value"]
        for each in panel["fieldConfig"]["overrides"]
        for one in each["properties"]
        if one["id"] == "unit"
    }
    order = sorted(settings["renameByName"], key=settings["indexByName"].__getitem__)
    titles = [settings["renameByName"][name] for name in order]
    rows = []
    for row in (each for each in frames if each.target["refId"] == "A"):
        cells = []
        for name, title in zip(order, titles, strict=True):
            if not name.startswith("Value #"):
                cells.append(row.labels.get(name, ""))
                continue
            letter = name.removeprefix("Value #")
            values = [
                each.values[-1]
                for each in frames
                if each.target["refId"] == letter and each.labels.items() <= row.labels.items()
            ]
            cells.append(with_unit(values[0], units.get(title, "short")) if values else "")
        rows.append(cells)
    return titles, rows


_DRAWERS: Mapping[str, Callable[[Axes, dict[str, Any], list[Frame]], None]] = {
    "timeseries": _draw_lines,
    "heatmap": _draw_heat_map,
    "state-timeline": _draw_states,
}


if __name__ == "__main__":
    main()
