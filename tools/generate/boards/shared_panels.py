"""Panels that several boards share: those of signals, small ones, and the annotations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sentinel.model.evidence_text import label_of
from sentinel.signals.catalogue import CombineRule, Signal
from tools.generate.detector_docs import DetectorDoc
from tools.generate.panels import (
    BAD,
    DashboardOptions,
    LabelVariable,
    PanelOptions,
    PanelQuery,
    annotation,
    collapsible_row,
    dashboard_json,
    rank_band_panel,
    stat_panel,
    time_series_panel,
)
from tools.generate.prometheus_rules import runbook_url

CLUSTER = 'cluster=~"$cluster"'
"""Matches the chosen clusters, by default all and series without that label."""
RUN_MATCHERS = f'{CLUSTER},run="$run"'
RUN = f"{{{RUN_MATCHERS}}}"
"""Selects the series of the run that a board shows."""
CLUSTER_VARIABLE = LabelVariable("cluster", "sentinel_run_info", is_multi=True)
RUN_VARIABLE = LabelVariable("run", f"sentinel_run_info{{{CLUSTER}}}")
ATTEMPT_VARIABLE = LabelVariable(
    "attempt", f"sentinel_attempt_start_timestamp_seconds{RUN}", is_multi=True, is_number=True
)
_ATTEMPT = f'sentinel_attempt_start_timestamp_seconds{{{RUN_MATCHERS},attempt=~"$attempt"}}'

_UNITS = {
    "": "short",
    "seconds": "s",
    "ratio": "percentunit",
    "bytes": "bytes",
    "bytes_per_second": "Bps",
    "watts": "watt",
    "celsius": "celsius",
}
_LEGENDS = {
    "": "run", "gpu": "{{instance}} GPU {{gpu}}", "disk": "{{instance}} {{stores}}",
    "host": "{{instance}}",
}  # fmt: skip
"""Legend of the series by measured entity; each node is its own scrape target."""

AVERAGE = "avg_over_time({}[$__range] @ end())"
"""Of a selector: the mean over the range of a chart, the same at each of its times."""

CLUSTER_AGENTS = (
    "sentinel_cluster_role_info and on (head) "
    f'sentinel_cluster_role_info{{{RUN_MATCHERS},head!=""}}'
)
"""Agents of all nodes of the run. Their `run` labels may differ; their `head` is the same."""


def run_board(
    title: str,
    uid: str,
    description: str,
    panels: Iterable[Any],
    variables: Sequence[LabelVariable],
) -> str:
    """JSON of a board of one run. With the variable of attempts, charts show the chosen ones."""
    condition = _ATTEMPT if ATTEMPT_VARIABLE in variables else ""
    page = "/runs/${run:percentencode}/"
    options = DashboardOptions(title, uid, description, variables, page, condition)
    return dashboard_json(options, panels, [*run_annotations(RUN), _checkpoint_annotation()])


def of_all_nodes(metric: str, of_range: str = "{}") -> str:
    """PromQL of a metric that the agent of each node exports, for all nodes of the run.

    `of_range` is applied to its selectors, for example `last_over_time({}[1h])`.
    """
    own, every = of_range.format(f"{metric}{RUN}"), of_range.format(metric)
    return f"{own} or {every} and on (cluster, run) ({CLUSTER_AGENTS})"


def extremes(expr: str, ranked: str, labels: str, lowest: int = 4) -> str:
    """The series of `expr` whose `ranked` is one of the four highest, or of the lowest.

    `ranked` does not change within the range of a chart, so that its lines are few and have no
    gaps. `labels` identify the series.
    """
    chosen = f"topk(4, {ranked})" + (f" or bottomk({lowest}, {ranked})" if lowest else "")
    return f"({expr}) and on ({labels}) ({chosen})"


def signal_panel(signal: Signal, docs: Sequence[DetectorDoc], width: int = 8) -> Any:
    """A signal over time, with the range of its ranks and the thresholds of its detectors."""
    detectors = [doc for doc in docs if doc.signal is signal]
    advice = "".join(f" {doc.title}: {doc.remedy}" for doc in detectors)
    options = PanelOptions(
        label_of(signal.name),
        f"{signal.help}{advice} Metric: {signal.metric}",
        unit=unit_of(signal),
        width=width,
        links={doc.title: runbook_url(doc.name) for doc in detectors},
    )
    if signal.entity:
        ranked = of_all_nodes(signal.metric, AVERAGE)
        expr = extremes(of_all_nodes(signal.metric), ranked, "cluster, instance, gpu, stores")
        return time_series_panel(options, [PanelQuery(expr, _LEGENDS[signal.entity])])
    # No threshold of the step number is exported: it is compared with itself.
    has_threshold = detectors and signal.name != "global_step"
    threshold = _threshold_query(signal) if has_threshold else None
    middle = PanelQuery(f"{signal.metric}{RUN}", _LEGENDS[signal.entity])
    if signal.combine_rule is CombineRule.SAME:
        return time_series_panel(options, [middle], threshold)
    lowest, highest, _ = signal.rank_metrics
    return rank_band_panel(
        options,
        middle,
        PanelQuery(f"{lowest}{RUN}", "lowest rank"),
        PanelQuery(f"{highest}{RUN}", "highest rank"),
        threshold,
    )


def rows(panels_by_title: Mapping[str, Sequence[Any]], open_rows: int) -> Iterator[Any]:
    """A row for each title: the first are open, the others collapsed."""
    for number, (title, panels) in enumerate(panels_by_title.items()):
        if number < open_rows:
            yield from (collapsible_row(title), *panels)
        else:
            yield collapsible_row(title, panels)


def _threshold_query(signal: Signal) -> PanelQuery:
    selector = f'{{{RUN_MATCHERS},signal="{signal.name}"}}'
    return PanelQuery(f"sentinel_detector_threshold{selector}", "threshold of {{detector}}")


def small_stat_panel(
    title: str,
    text: str,
    expr: str,
    *,
    unit: str = "short",
    colours: Mapping[float, str] | None = None,
) -> Any:
    """A number without a chart; the description names its first metric."""
    return stat_panel(small_options(title, text, expr, unit), PanelQuery(expr), colours)


def small_options(title: str, text: str, expr: str, unit: str = "short") -> PanelOptions:
    """Options of a panel of the first row."""
    metric = re.findall(r"sentinel_\w+", expr)[0]
    return PanelOptions(title, f"{text} Metric: {metric}", unit=unit, width=3, height=4)


def lines_panel(
    title: str, text: str, query: PanelQuery, *, unit: str = "short", width: int = 8
) -> Any:
    """One query over time; the description names its first metric."""
    metric = re.findall(r"(?:sentinel|DCGM|node|scrape)_\w+", query.expr)[0]
    options = PanelOptions(title, f"{text} Metric: {metric}", unit=unit, width=width)
    return time_series_panel(options, [query])


def departures_panel(width: int, height: int = 8) -> Any:
    """How many ranks run, and how many ended."""
    states = " or ".join(
        f'label_replace(sentinel_ranks_{state}{RUN}, "state", "{state}", "", "")'
        for state in ("running", "failed", "gone")
    )
    options = PanelOptions(
        "Departures",
        "Ranks that run, that failed, and that disappeared. The board Ranks shows which. "
        "Metric: sentinel_ranks_running",
        width=width,
        height=height,
    )
    return time_series_panel(options, [PanelQuery(states, "{{state}}")])


def run_annotations(selector: str) -> Iterator[Any]:
    """Marks of the cases and the attempts of the selected runs."""
    yield annotation(
        "Case",
        f"max by (cluster, run, case, severity, title) (sentinel_case_info{selector})",
        "{{run}}: {{title}} ({{severity}})",
        BAD,
    )
    yield annotation(
        "Attempt",
        f"1000 * sentinel_attempt_start_timestamp_seconds{selector}",
        "{{run}}: attempt {{attempt}} started",
        "purple",
        value_is_time=True,
    )


def _checkpoint_annotation() -> Any:
    return annotation(
        "Checkpoint",
        f"1000 * sentinel_last_checkpoint_timestamp_seconds{RUN}",
        "Checkpoint written",
        "blue",
        value_is_time=True,
    )


def unit_of(signal: Signal) -> str:
    """Grafana's name of the unit of the signal."""
    if signal.name == "learning_rate":
        return "sci"
    return _UNITS.get(signal.unit, f"suffix: {signal.unit}")
