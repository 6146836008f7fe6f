"""Grafana dashboards, built from the signal catalogue and the detectors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sentinel.model.diagnosis import MIN_CONFIDENCE
from sentinel.signals.catalogue import SIGNAL_GROUPS, SIGNALS, CombineRule, Signal
from tools.generate.detector_docs import DetectorDoc
from tools.generate.panels import (
    BAD,
    GOOD,
    WARN,
    DashboardOptions,
    PanelOptions,
    PanelQuery,
    annotation,
    collapsible_row,
    confidence_timeline_panel,
    dashboard_json,
    rank_band_panel,
    stat_panel,
    state_panel,
    state_timeline_panel,
    table_panel,
    time_series_panel,
)
from tools.generate.prometheus_rules import diagnosis_url, runbook_url

RUN = '{run="$run"}'
"""Selects the series of the run that the dashboard shows."""

TOP_SIGNALS = ("kl_ref", "reward", "loss", "grad_norm", "step_time", "global_step")
"""Signals shown first; the others follow in collapsed rows by group."""

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


def run_health_dashboard(docs: Iterable[DetectorDoc]) -> str:
    """JSON of the dashboard for on-call engineers: health, onset, affected rank and remedy."""
    docs = list(docs)
    parts = [
        *_stat_panels(),
        _case_panel(),
        _diagnosis_panel(),
        _detector_panel(docs),
        *(_signal_panel(SIGNALS[name], docs) for name in TOP_SIGNALS),
        *_rank_panels(),
        *(
            collapsible_row(
                title, [_signal_panel(s, docs, 8) for s in signals if s.name not in TOP_SIGNALS]
            )
            for title, signals in SIGNAL_GROUPS.items()
        ),
        collapsible_row("Sentinel", _self_panels()),
    ]
    options = DashboardOptions(
        "Run health",
        "sentinel-run-health",
        "Health of one training run: open alerts, their onset, the affected rank and the remedy.",
        run_metric="sentinel_run_info",
    )
    return dashboard_json(options, parts, _annotations())


def _stat_panels() -> Iterator[Any]:
    query = PanelQuery(f"max by (state) (sentinel_run_state{RUN} == 1)", "{{state}}")
    state_colours = {"starting": "blue", "running": GOOD, "stalled": WARN, "finished": "blue"}
    yield state_panel(
        _small_panel("State", "State of the run; no data if no agent exports it.", query.expr),
        query,
        state_colours | {"failed": BAD, "died": BAD},
    )
    yield _stat_panel(
        "Alerts firing",
        "Runbooks are linked from the panel Detectors.",
        f"sum(max by (detector, severity) (sentinel_alert_firing{RUN}))",
        colours={0: GOOD, 1: BAD},
    )
    for name in ("kl_ref", "reward"):
        signal = SIGNALS[name]
        expr = f"{signal.metric}{RUN}"
        yield _stat_panel(_title(signal), signal.help, expr, unit=_unit(signal))
    yield _stat_panel(
        "Steps per minute",
        "Zero during an evaluation or a save.",
        f"60 * sum(rate(sentinel_steps_total{RUN}[$__rate_interval]))",
        unit="cpm",
    )
    yield _stat_panel(
        "Time since last step",
        "If far above the step time, the run may hang.",
        f"time() - max(sentinel_last_step_timestamp_seconds{RUN})",
        unit="s",
    )
    yield _stat_panel(
        "Ranks running",
        "If fewer than were started, a rank has died or ended.",
        f"sum(sentinel_ranks_running{RUN})",
    )
    yield _stat_panel(
        "NaN or infinite",
        "Number of NaN or infinite values in the selected time range.",
        f"sum(increase(sentinel_nonfinite_total{RUN}[$__range])) or vector(0)",
        colours={0: GOOD, 1: BAD},
    )


def _case_panel() -> Any:
    options = PanelOptions(
        "Cases",
        "The unresolved cases: what is wrong, since which step, and the last checkpoint before "
        "that. Facts and remedy are on the agent's web page. Metric: sentinel_case_info",
        unit="none",
        width=24,
        height=6,
        links={"Causes": diagnosis_url()},
    )
    labels = ("severity", "title", "cause", "rank")
    info = PanelQuery(f"max by (case, {', '.join(labels)}) (sentinel_case_info{RUN})")
    values = {
        "Began at step": PanelQuery(f"max by (case) (sentinel_case_onset_step{RUN})"),
        "Last good step": PanelQuery(f"max by (case) (sentinel_case_last_good_step{RUN})"),
    }
    return table_panel(options, info, values, {name: name.capitalize() for name in labels})


def _diagnosis_panel() -> Any:
    options = PanelOptions(
        "Diagnosis",
        "The named cause of each case and its confidence. Metric: sentinel_case_confidence",
        unit="percentunit",
        width=24,
        height=5,
        links={"Causes": diagnosis_url()},
    )
    query = PanelQuery(
        f"max by (cause) (sentinel_case_confidence{RUN} * on (run, case) group_left (cause) "
        f"sentinel_case_info{RUN})",
        "{{cause}}",
    )
    return confidence_timeline_panel(options, query, {MIN_CONFIDENCE: WARN, 0.9: BAD})


def _detector_panel(docs: Sequence[DetectorDoc]) -> Any:
    options = PanelOptions(
        "Detectors",
        "One row per detector, red while its alert fires. The links lead to the runbooks. "
        "Metric: sentinel_alert_firing",
        width=24,
        height=max(6, 2 + (len(docs) + 1) // 2),
        links={doc.title: runbook_url(doc.name) for doc in docs},
    )
    firing = PanelQuery(f"max by (detector) (sentinel_alert_firing{RUN})", "{{detector}}")
    return state_timeline_panel(options, firing, {0: ("clear", GOOD), 1: ("firing", BAD)})


def _signal_panel(signal: Signal, docs: Sequence[DetectorDoc], width: int = 12) -> Any:
    detectors = [doc for doc in docs if doc.signal is signal]
    advice = "".join(f" {doc.title}: {doc.remedy}" for doc in detectors)
    options = PanelOptions(
        _title(signal),
        f"{signal.help}{advice} Metric: {signal.metric}",
        unit=_unit(signal),
        width=width,
        links={doc.title: runbook_url(doc.name) for doc in detectors},
    )
    other_nodes = f" or {signal.metric} and on (run) ({CLUSTER_AGENTS})" if signal.entity else ""
    middle = PanelQuery(f"{signal.metric}{RUN}{other_nodes}", _LEGENDS[signal.entity])
    if signal.combine_rule is CombineRule.SAME or signal.entity:
        return time_series_panel(options, [middle])
    lowest, highest, _ = signal.rank_metrics
    return rank_band_panel(
        options,
        middle,
        PanelQuery(f"{lowest}{RUN}", "lowest rank"),
        PanelQuery(f"{highest}{RUN}", "highest rank"),
    )


def _rank_panels() -> Iterator[Any]:
    yield time_series_panel(
        PanelOptions(
            "Slowest ranks",
            "Step time of the eight slowest ranks. A rank far above the others slows all of them: "
            "check its node. Metric: sentinel_rank_step_duration_seconds",
            unit="s",
        ),
        [PanelQuery(f"topk(8, sentinel_rank_step_duration_seconds{RUN})", "rank {{rank}}")],
    )
    yield state_timeline_panel(
        PanelOptions(
            "Ranks",
            "Whether each rank's process is alive. Start with the first that ended. "
            "Metric: sentinel_rank_up",
        ),
        PanelQuery(f"max by (rank) (sentinel_rank_up{RUN})", "rank {{rank}}"),
        {0: ("gone", BAD), 1: ("up", GOOD)},
    )
    yield time_series_panel(
        PanelOptions(
            "NaN or infinite values",
            "NaN or infinite values by signal. In the gradient norm alone, loss scaling may be the "
            "reason; in the loss, resume from a checkpoint. Metric: sentinel_nonfinite_total",
        ),
        [
            PanelQuery(
                f"sum by (signal) (increase(sentinel_nonfinite_total{RUN}[$__rate_interval]))",
                "{{signal}}",
            )
        ],
    )
    yield time_series_panel(
        PanelOptions(
            "Nodes",
            "Number of nodes by state. The agent's page names lost nodes. Metric: sentinel_nodes",
            links={"Node lost": runbook_url("node_lost")},
        ),
        [PanelQuery(f"max by (state) (sentinel_nodes{RUN})", "{{state}}")],
    )


def _self_panels() -> Iterator[Any]:
    yield stat_panel(
        PanelOptions(
            "Agents unreachable",
            "Start them with `sentinel agent --run <run>`. Metric: up",
            width=8,
        ),
        PanelQuery('count(up{job="sentinel"} == 0) or vector(0)'),
        {0: GOOD, 1: BAD},
    )
    yield _self_panel(
        "client_overhead_seconds", "rank", "Share of a rank's time spent in the client."
    )
    yield _self_panel("dropped_records", "reason", "Records that detectors do not see.")
    yield _self_panel(
        "client_errors", "rank", "Errors suppressed inside the trainer; please report them."
    )
    yield _self_panel(
        "detector_errors",
        "detector",
        "After three the detector is off for the run; please report it.",
    )
    yield _self_panel("sink_deliveries", "outcome", "Test a sink with `sentinel notify test`.")


def _self_panel(name: str, label: str, text: str) -> Any:
    family = f"sentinel_{name}_total"
    is_time = name.endswith("seconds")
    function, unit = ("rate", "percentunit") if is_time else ("increase", "short")
    title = name.replace("_", " ").capitalize()
    return time_series_panel(
        PanelOptions(title, f"{text} Metric: {family}", unit=unit, width=8),
        [
            PanelQuery(
                f"sum by ({label}) ({function}({family}{RUN}[$__rate_interval]))",
                f"{{{{{label}}}}}",
            )
        ],
    )


def _annotations() -> Iterator[Any]:
    yield annotation(
        "Case",
        f"max by (case, severity, title) (sentinel_case_info{RUN})",
        "{{title}} ({{severity}})",
        BAD,
    )
    yield annotation(
        "Checkpoint",
        f"1000 * sentinel_last_checkpoint_timestamp_seconds{RUN}",
        "Checkpoint written",
        "blue",
        value_is_time=True,
    )


def _stat_panel(
    title: str,
    text: str,
    expr: str,
    *,
    unit: str = "short",
    colours: Mapping[float, str] | None = None,
) -> Any:
    return stat_panel(_small_panel(title, text, expr, unit), PanelQuery(expr), colours)


def _small_panel(title: str, text: str, expr: str, unit: str = "short") -> PanelOptions:
    metric = re.findall(r"sentinel_\w+", expr)[0]
    return PanelOptions(title, f"{text} Metric: {metric}", unit=unit, width=3, height=4)


def _title(signal: Signal) -> str:
    if signal.name in _TITLES:
        return _TITLES[signal.name]
    title = signal.name.replace("_", " ").capitalize()
    return " ".join(_ABBREVIATIONS.get(word.lower(), word) for word in title.split())


def _unit(signal: Signal) -> str:
    if signal.name == "learning_rate":
        return "sci"
    return _UNITS.get(signal.unit, f"suffix: {signal.unit}")
