"""Grafana panels of the kinds used by the dashboards.

Only this module uses grafana-foundation-sdk; without it, dashboards are not generated.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

with warnings.catch_warnings(), suppress(ImportError):
    # On import it recommends a dashboard schema that Grafana's own file provisioning cannot read.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import dashboard as board
    from grafana_foundation_sdk.builders import (
        heatmap,
        prometheus,
        stat,
        statetimeline,
        table,
        text,
        timeseries,
    )
    from grafana_foundation_sdk.builders.common import (
        ReduceDataOptions,
        StackingConfig,
        VizLegendOptions,
    )
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import common
    from grafana_foundation_sdk.models import dashboard as model
    from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
    from grafana_foundation_sdk.models.prometheus import PromQueryFormat
    from grafana_foundation_sdk.models.text import TextMode

IS_SDK_INSTALLED = find_spec("grafana_foundation_sdk") is not None

PAGE_URL = "http://127.0.0.1:13120"
"""Default of the variable with the address of the pages: that of `sentinel serve`."""

GOOD, WARN, BAD, PLAIN = "green", "orange", "red", "text"
STATE_COLOURS = {
    "starting": "blue", "running": GOOD, "stalled": WARN, "finished": "blue", "failed": BAD,
    "died": BAD,
}  # fmt: skip
SEVERITY_COLOURS = {"critical": BAD, "warning": WARN, "info": "blue"}


@dataclass(frozen=True)
class PanelQuery:
    """PromQL and the legend of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class PanelOptions:
    """Options of every panel; `description` is the help text, `links` are URLs by title."""

    title: str
    description: str
    unit: str = "short"
    width: int = 12
    height: int = 8
    links: Mapping[str, str] | None = None


@dataclass(frozen=True)
class LabelVariable:
    """A variable with the values of a label of a series.

    If `is_multi`, several can be selected, by default all, also of series without the label.
    """

    name: str
    series: str
    is_multi: bool = False
    is_number: bool = False


@dataclass(frozen=True)
class DashboardOptions:
    """Title, uid, description and variables of a dashboard.

    `page_path` is the path of the page that it links to, on the server that `page` names. Queries
    over time have series only while the query `condition` has one, if there is such.
    """

    title: str
    uid: str
    description: str
    variables: Sequence[LabelVariable]
    page_path: str
    condition: str = ""


def stat_panel(
    options: PanelOptions, query: PanelQuery, colours: Mapping[float, str] | None = None
) -> Any:
    """The latest value of a query; each colour applies from its value upwards."""
    panel = _configure(stat.Panel(), options, [query], is_instant=True)
    panel.thresholds(_thresholds(colours or {}))
    mode = common.BigValueColorMode
    panel.color_mode(mode.BACKGROUND if colours else mode.NONE)
    panel.graph_mode(common.BigValueGraphMode.NONE)
    return panel.reduce_options(ReduceDataOptions().calcs(["lastNotNull"])).no_value("no data")


def state_panel(options: PanelOptions, query: PanelQuery, colours: Mapping[str, str]) -> Any:
    """The name of the one series with a value, in its colour."""
    panel = stat_panel(options, query).text_mode(common.BigValueTextMode.NAME)
    panel.color_mode(common.BigValueColorMode.BACKGROUND)
    for name, colour in colours.items():
        panel.override_by_name(name, [_fixed_color(colour)])
    return panel


def time_series_panel(
    options: PanelOptions, queries: Sequence[PanelQuery], threshold: PanelQuery | None = None
) -> Any:
    """Lines over time, with the thresholds of detectors dashed."""
    panel = _configure(timeseries.Panel(), options, [*queries, *filter(None, [threshold])])
    panel.line_width(1).show_points(common.VisibilityMode.AUTO).no_value("not logged")
    if threshold:
        dashes = model.DynamicConfigValue(
            id_val="custom.lineStyle", value={"fill": "dash", "dash": [8, 8]}
        )
        panel.override_by_query("ABCDEFGH"[len(queries)], [dashes, _fixed_color(BAD)])
    return panel.legend(_legend())


def stacked_panel(options: PanelOptions, query: PanelQuery, colours: Mapping[str, str]) -> Any:
    """Areas over time, each on top of the one before, with colours by name."""
    panel = time_series_panel(options, [query]).fill_opacity(40)
    for name, colour in colours.items():
        panel.override_by_name(name, [_fixed_color(colour)])
    return panel.stacking(StackingConfig().mode(common.StackingMode.NORMAL))


def heat_map_panel(options: PanelOptions, query: PanelQuery, *, has_buckets: bool = False) -> Any:
    """A row per series, or per bucket of a histogram, coloured by its value over time."""
    panel = _configure(heatmap.Panel(), options, [query])
    if has_buckets:
        panel.build().targets[0].format_val = PromQueryFormat.HEATMAP
    colours = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges")
    panel.color(colours.fill(WARN).exponent(0.5).steps(64)).calculate(False).show_legend()
    unit = "short" if has_buckets else options.unit
    return panel.cell_values(heatmap.CellValues().unit(unit)).no_value("not logged")


def text_panel(title: str, markdown: str, width: int = 24, height: int = 4) -> Any:
    """Text in Markdown."""
    panel = text.Panel().title(title).mode(TextMode.MARKDOWN).content(markdown)
    return panel.span(width).height(height)


def rank_band_panel(
    options: PanelOptions,
    middle: PanelQuery,
    lowest: PanelQuery,
    highest: PanelQuery,
    threshold: PanelQuery | None = None,
) -> Any:
    """A line, with the space between the lowest and the highest rank filled."""
    panel = time_series_panel(options, [middle, lowest, highest], threshold)
    edge = model.DynamicConfigValue(id_val="custom.lineWidth", value=0)
    fill = model.DynamicConfigValue(id_val="custom.fillOpacity", value=15)
    below = model.DynamicConfigValue(id_val="custom.fillBelowTo", value=lowest.legend)
    panel.override_by_name(lowest.legend, [edge, _fixed_color("blue")])
    return panel.override_by_name(highest.legend, [edge, fill, below, _fixed_color("blue")])


def state_timeline_panel(
    panel_options: PanelOptions, query: PanelQuery, states: Mapping[int, tuple[str, str]]
) -> Any:
    """One row per series; each value has a text and a colour."""
    panel = _configure(statetimeline.Panel(), panel_options, [query])
    options = {
        str(value): model.ValueMappingResult(text=text, color=colour, index=value)
        for value, (text, colour) in states.items()
    }
    panel.mappings([model.ValueMap(options=options)]).merge_values(True).no_value("no data")
    # Grafana shows 20 rows a page by default.
    panel.show_value(common.VisibilityMode.NEVER).row_height(0.85).fill_opacity(80).per_page(80)
    return panel.legend(_legend())


def confidence_timeline_panel(
    options: PanelOptions, query: PanelQuery, colours: Mapping[float, str]
) -> Any:
    """One row per series with its value; each colour applies from its value upwards."""
    panel = _configure(statetimeline.Panel(), options, [query]).min(0).max(1).decimals(0)
    panel.color_scheme(board.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
    panel.thresholds(_thresholds(colours)).merge_values(True).no_value("none named")
    panel.show_value(common.VisibilityMode.AUTO).row_height(0.85).fill_opacity(80)
    return panel.legend(_legend())


def table_panel(
    options: PanelOptions,
    labels: PanelQuery,
    values: Mapping[str, PanelQuery],
    columns: Mapping[str, str],
) -> Any:
    """A row per series of `labels`; `columns` are titles by label.

    The series of each of `values`, by column title, are joined by the labels that both have.
    """
    panel = _configure(table.Panel(), options, [labels, *values.values()], is_instant=True)
    for target in panel.build().targets:
        target.format_val = PromQueryFormat.TABLE
    value_columns = [f"Value #{letter}" for letter in "ABCDEFGH"[: 1 + len(values)]]
    titles = {**columns, **dict(zip(value_columns[1:], values, strict=True))}
    shown = {
        # The column of a single query has no letter.
        "excludeByName": {"Time": True, "Value": True, value_columns[0]: True, "case": True},
        "indexByName": {name: index for index, name in enumerate(titles)},
        "renameByName": titles,
    }
    for transformation, settings in (("merge", {}), ("organize", shown)):
        panel.with_transformation(
            model.DataTransformerConfig(id_val=transformation, options=settings)
        )
    return panel.no_value("none")


def column_unit(panel: Any, title: str, unit: str) -> None:
    """Set the unit of the column of a table."""
    panel.override_by_name(title, [model.DynamicConfigValue(id_val="unit", value=unit)])


def column_colours(panel: Any, title: str, colours: Mapping[str, str]) -> None:
    """Colour the texts of the column of a table."""
    options = {
        text: {"text": text, "color": colour, "index": index}
        for index, (text, colour) in enumerate(colours.items())
    }
    properties = {
        "custom.cellOptions": {"type": "color-text"},
        "mappings": [{"type": "value", "options": options}],
    }
    panel.override_by_name(
        title,
        [model.DynamicConfigValue(id_val=name, value=each) for name, each in properties.items()],
    )


def column_link(panel: Any, column: str, title: str, url: str) -> None:
    """Link the cells of the column of a table."""
    links = [{"title": title, "url": url}]
    panel.override_by_name(column, [model.DynamicConfigValue(id_val="links", value=links)])


def collapsible_row(title: str, panels: Iterable[Any] = ()) -> Any:
    """A row heading; if it has panels, they are collapsed under it."""
    heading = board.Row(title)
    for panel in panels:
        heading.with_panel(panel)
    return heading.collapsed(True) if heading.build().panels else heading


def annotation(name: str, expr: str, text: str, colour: str, *, value_is_time: bool = False) -> Any:
    """Marks on every chart where a query has a value, or at the times (ms) that it returns."""
    query = board.AnnotationQuery().name(name).datasource(_source()).enable(True).icon_color(colour)
    query.expr(expr).title_format(name).text_format(text).step("15s")
    return query.use_value_for_time(value_is_time)


def dashboard_json(
    options: DashboardOptions, panels: Iterable[Any], annotation_queries: Iterable[Any]
) -> str:
    """JSON of the dashboard, one panel a line, with variables for data source and page."""
    dashboard = board.Dashboard(options.title).uid(options.uid).description(options.description)
    dashboard.tags(["sentinel"]).readonly()
    dashboard.refresh("30s").time("now-6h", "now").timezone("browser")
    dashboard.tooltip(model.DashboardCursorSync.CROSSHAIR)
    dashboard.with_variable(
        board.DatasourceVariable("datasource").type("prometheus").label("Data source")
    )
    for variable in options.variables:
        dashboard.with_variable(_label_variable(variable))
    dashboard.with_variable(
        board.TextBoxVariable("page").label("Address of the pages").default_value(PAGE_URL)
    )
    for part in panels:
        add = dashboard.with_row if isinstance(part, board.Row) else dashboard.with_panel
        add(part)
    for annotation_query in annotation_queries:
        dashboard.annotation(annotation_query)
    dashboard.link(
        board.DashboardLink("sentinel").type(model.DashboardLinkType.DASHBOARDS)
        .tags(["sentinel"]).as_dropdown(True).include_vars(True).keep_time(True)
    )  # fmt: skip
    dashboard.link(link("Page of sentinel", f"${{page}}{options.page_path}"))
    model_of_board = dashboard.build()
    for number, panel in enumerate(_panels_and_rows(model_of_board), start=1):
        # A panel needs a unique id so that links to it work.
        panel.id_val = number
        for target in getattr(panel, "targets", None) or ():
            if target.range_val and options.condition:
                target.expr = _with_condition(target.expr, options.condition)
    built = json.dumps(model_of_board, cls=JSONEncoder, sort_keys=True)
    return f"{_with_lines(json.loads(built))}\n"


def _with_lines(value: dict[str, Any]) -> str:
    """JSON of a dashboard or a row, with a line for each key and each panel."""
    return "{" + ",\n".join(_key_json(*item) for item in value.items()) + "}"


def _key_json(key: str, content: Any) -> str:
    if key == "panels" and content:
        return '"panels": [\n' + ",\n".join(map(_panel_json, content)) + "]"
    return f"{json.dumps(key)}: {json.dumps(content)}"


def _panel_json(panel: dict[str, Any]) -> str:
    return _with_lines(panel) if panel.get("panels") else json.dumps(panel)


def _label_variable(variable: LabelVariable) -> Any:
    query = f"label_values({variable.series}, {variable.name})"
    built = board.QueryVariable(variable.name).label(variable.name.capitalize())
    built.query(query).definition(query)
    built.datasource(_source()).refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
    if variable.is_multi:
        built.multi(True).include_all(True).all_value(".*")
        built.current(model.VariableOption(text="All", value="$__all"))
    orders = model.VariableSort
    return built.sort(orders.NUMERICAL_ASC if variable.is_number else orders.ALPHABETICAL_ASC)


def _configure(
    panel: Any, options: PanelOptions, queries: Sequence[PanelQuery], *, is_instant: bool = False
) -> Any:
    panel.title(options.title).description(options.description).unit(options.unit)
    panel.datasource(_source()).span(options.width).height(options.height)
    for letter, query in zip("ABCDEFGH", queries, strict=False):
        data_query = prometheus.Dataquery().expr(query.expr).ref_id(letter).datasource(_source())
        data_query.legend_format(query.legend or "__auto")
        panel.with_target(data_query.instant() if is_instant else data_query.range())
    if options.links:
        panel.links([link(title, url) for title, url in options.links.items()])
    return panel


def link(title: str, url: str) -> Any:
    """A link of a panel or of its data, which opens a new tab."""
    built = board.DashboardLink(title).type(model.DashboardLinkType.LINK).url(url)
    return built.target_blank(True)


def _source() -> Any:
    return common.DataSourceRef(type_val="prometheus", uid="${datasource}")


def _thresholds(colours: Mapping[float, str]) -> Any:
    steps = [model.Threshold(value=None, color=PLAIN)]
    steps += [model.Threshold(value=value, color=colour) for value, colour in colours.items()]
    return board.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def _fixed_color(colour: str) -> Any:
    fixed = {"mode": "fixed", "fixedColor": colour}
    return model.DynamicConfigValue(id_val="color", value=fixed)


def _legend() -> Any:
    legend = VizLegendOptions().show_legend(True).placement(common.LegendPlacement.BOTTOM)
    return legend.display_mode(common.LegendDisplayMode.LIST)


def _panels_and_rows(built: Any) -> Iterator[Any]:
    for panel in built.panels:
        yield panel
        yield from getattr(panel, "panels", None) or ()


def _with_condition(expr: str, condition: str) -> str:
    # `and` binds more than `or`, and less than arithmetic.
    return f"{f'({expr})' if ' or ' in expr else expr} and on () {condition}"
