"""Grafana panels of the kinds used by the dashboards.

Only this module uses grafana-foundation-sdk; without it, dashboards are not generated.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

with warnings.catch_warnings(), suppress(ImportError):
    # On import it recommends a dashboard schema that Grafana's own file provisioning cannot read.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import dashboard as board
    from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, table, timeseries
    from grafana_foundation_sdk.builders.common import ReduceDataOptions, VizLegendOptions
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import common
    from grafana_foundation_sdk.models import dashboard as model
    from grafana_foundation_sdk.models.prometheus import PromQueryFormat

IS_SDK_INSTALLED = find_spec("grafana_foundation_sdk") is not None

GOOD, WARN, BAD, PLAIN = "green", "orange", "red", "text"


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
class DashboardOptions:
    """Title, uid and description of a dashboard; `run_metric` provides the list of runs."""

    title: str
    uid: str
    description: str
    run_metric: str


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


def time_series_panel(options: PanelOptions, queries: Sequence[PanelQuery]) -> Any:
    """Lines over time."""
    panel = _configure(timeseries.Panel(), options, queries)
    panel.line_width(1).show_points(common.VisibilityMode.AUTO).no_value("not logged")
    return panel.legend(_legend())


def rank_band_panel(
    options: PanelOptions, middle: PanelQuery, lowest: PanelQuery, highest: PanelQuery
) -> Any:
    """A line, with the space between the lowest and the highest rank filled."""
    panel = time_series_panel(options, [middle, lowest, highest])
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
    panel.show_value(common.VisibilityMode.NEVER).row_height(0.85).fill_opacity(80)
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
        "excludeByName": {"Time": True, value_columns[0]: True, "case": True},
        "indexByName": {name: index for index, name in enumerate(titles)},
        "renameByName": titles,
    }
    for transformation, settings in (("merge", {}), ("organize", shown)):
        panel.with_transformation(
            model.DataTransformerConfig(id_val=transformation, options=settings)
        )
    return panel.no_value("none")


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
    """JSON of the dashboard, with variables for the data source and the run."""
    dashboard = board.Dashboard(options.title).uid(options.uid).description(options.description)
    dashboard.tags(["sentinel"]).readonly()
    dashboard.refresh("30s").time("now-6h", "now").timezone("browser")
    dashboard.tooltip(model.DashboardCursorSync.CROSSHAIR)
    dashboard.with_variable(
        board.DatasourceVariable("datasource").type("prometheus").label("Source")
    )
    dashboard.with_variable(_run_variable(options.run_metric))
    for part in panels:
        add = dashboard.with_row if isinstance(part, board.Row) else dashboard.with_panel
        add(part)
    for annotation_query in annotation_queries:
        dashboard.annotation(annotation_query)
    dashboard.link(
        board.DashboardLink("sentinel").type(model.DashboardLinkType.DASHBOARDS)
        .tags(["sentinel"]).as_dropdown(True).include_vars(True).keep_time(True)
    )  # fmt: skip
    built = _number_panels(dashboard.build())
    return json.dumps(built, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _run_variable(metric: str) -> Any:
    query = f"label_values({metric}, run)"
    variable = board.QueryVariable("run").label("Run").query(query).definition(query)
    variable.datasource(_source()).refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
    return variable.sort(model.VariableSort.ALPHABETICAL_DESC)


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
        panel.links([_link(title, url) for title, url in options.links.items()])
    return panel


def _link(title: str, url: str) -> Any:
    link = board.DashboardLink(title).type(model.DashboardLinkType.LINK).url(url)
    return link.target_blank(True)


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


def _number_panels(built: Any) -> Any:
    # A panel needs a unique id so that links to it work.
    count = 0
    for panel in built.panels:
        for each in (panel, *(getattr(panel, "panels", None) or ())):
            count += 1
            each.id_val = count
    return built
