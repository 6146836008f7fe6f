"""Panels that several boards share: those of signals, small ones, and the annotations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sentinel.signals.catalogue import SIGNAL_GROUPS, CombineRule, Signal
from tools.generate.detector_docs import DetectorDoc
from tools.generate.panels import (
    BAD,
    DashboardOptions,
    LabelVariable,
    PanelOptions,
    PanelQuery,
    annotation,
    collapsible_row,
    rank_band_panel,
    stat_panel,
    time_series_panel,
)
from tools.generate.prometheus_rules import runbook_url

RUN = '{run="$run"}'
"""Selects the series of the run that a board shows."""
OPEN_ROWS = 3
"""Number of groups of signals that a board shows without a click."""
RUN_VARIABLE = LabelVariable("run", "sentinel_run_info")

_UNITS = {
    "": "short",
    "seconds": "s",
    "ratio": "percentunit",
    "bytes": "bytes",
    "bytes_per_second": "Bps",
    "watts": "watt",
    "celsius": "celsius",
}
_TITLES = {
    "kl_ref": "KL to the reference",
    "kl_old": "KL to the sampling policy",
    "kl_mismatch": "KL between sampling engine and trainer",
    "kl_coef": "KL coefficient",
    "mfu": "Model FLOPs utilisation",
}
_ABBREVIATIONS = {"gpu": "GPU", "ecc": "ECC", "xid": "XID", "cpu": "CPU"}
_LEGENDS = {
    "": "run", "gpu": "{{instance}} GPU {{gpu}}", "disk": "{{instance}} {{stores}}",
    "host": "{{instance}}",
}  # fmt: skip
"""Legend of the series by measured entity; each node is its own scrape target."""

CLUSTER_AGENTS = (
    'sentinel_cluster_role_info and on (head) sentinel_cluster_role_info{run="$run",head!=""}'
)
"""Agents of all nodes of the run. Their `run` labels may differ; their `head` is the same."""


def run_board_options(
    title: str, uid: str, description: str, *others: LabelVariable
) -> DashboardOptions:
    """Options of a board of one run."""
    page = "/runs/${run:percentencode}/"
    return DashboardOptions(title, uid, description, (RUN_VARIABLE, *others), page)


def of_all_nodes(metric: str) -> str:
    """PromQL of a metric that the agent of each node exports, for all nodes of the run."""
    return f"{metric}{RUN} or {metric} and on (run) ({CLUSTER_AGENTS})"


def signal_panel(signal: Signal, docs: Sequence[DetectorDoc], width: int = 8) -> Any:
    """A signal over time, with the range of its ranks and the thresholds of its detectors."""
    detectors = [doc for doc in docs if doc.signal is signal]
    advice = "".join(f" {doc.title}: {doc.remedy}" for doc in detectors)
    options = PanelOptions(
        title_of(signal),
        f"{signal.help}{advice} Metric: {signal.metric}",
        unit=unit_of(signal),
        width=width,
        links={doc.title: runbook_url(doc.name) for doc in detectors},
    )
    if signal.entity:
        query = PanelQuery(of_all_nodes(signal.metric), _LEGENDS[signal.entity])
        return time_series_panel(options, [query])
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


def signal_rows(titles: Sequence[str], docs: Sequence[DetectorDoc]) -> Iterator[Any]:
    """A row for each of these groups of the catalogue: the first are open, the others collapsed."""
    for number, title in enumerate(titles):
        panels = [signal_panel(signal, docs) for signal in SIGNAL_GROUPS[title]]
        if number < OPEN_ROWS:
            yield from (collapsible_row(title), *panels)
        else:
            yield collapsible_row(title, panels)


def _threshold_query(signal: Signal) -> PanelQuery:
    selector = f'{{run="$run",signal="{signal.name}"}}'
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


def run_annotations(selector: str = RUN) -> Iterator[Any]:
    """Marks of the cases and the checkpoints of the selected runs."""
    yield annotation(
        "Case",
        f"max by (run, case, severity, title) (sentinel_case_info{selector})",
        "{{title}} ({{severity}})",
        BAD,
    )
    yield annotation(
        "Checkpoint",
        f"1000 * sentinel_last_checkpoint_timestamp_seconds{selector}",
        "Checkpoint written",
        "blue",
        value_is_time=True,
    )


def title_of(signal: Signal) -> str:
    """Name of the signal for people."""
    if signal.name in _TITLES:
        return _TITLES[signal.name]
    title = signal.name.replace("_", " ").capitalize()
    return " ".join(_ABBREVIATIONS.get(word.lower(), word) for word in title.split())


def unit_of(signal: Signal) -> str:
    """Grafana's name of the unit of the signal."""
    if signal.name == "learning_rate":
        return "sci"
    return _UNITS.get(signal.unit, f"suffix: {signal.unit}")
