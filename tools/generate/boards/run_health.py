"""The board of the person on call: is the run healthy, since when, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sentinel.model.diagnosis import MIN_CONFIDENCE
from sentinel.model.evidence_text import label_of
from sentinel.signals.catalogue import SIGNALS
from tools.generate.boards.shared_panels import (
    ATTEMPT_VARIABLE,
    CLUSTER_VARIABLE,
    RUN,
    RUN_MATCHERS,
    RUN_VARIABLE,
    departures_panel,
    lines_panel,
    run_board,
    signal_panel,
    small_options,
    small_stat_panel,
    unit_of,
)
from tools.generate.detector_docs import DetectorDoc
from tools.generate.panels import (
    BAD,
    GOOD,
    SEVERITY_COLOURS,
    STATE_COLOURS,
    WARN,
    PanelOptions,
    PanelQuery,
    column_colours,
    confidence_timeline_panel,
    link,
    stacked_panel,
    state_panel,
    state_timeline_panel,
    table_panel,
)
from tools.generate.prometheus_rules import diagnosis_url, runbook_url
from tools.generate.recording_rules import firing_alerts, goodput

TOP_SIGNALS = ("kl_ref", "reward", "loss", "grad_norm", "step_time", "global_step")


_ACTIVITY_COLOURS = {
    "productive": GOOD,
    "startup": "blue",
    "evaluation": "super-light-blue",
    "checkpoint": "yellow",
    "stalled": "purple",
    "lost": WARN,
    "down": BAD,
}


def run_health_board(docs: Sequence[DetectorDoc]) -> str:
    """JSON of the board: state, open cases with their cause, detectors and main signals."""
    panels = [
        *_stat_panels(),
        _case_panel(),
        _diagnosis_panel(),
        _detector_panel(),
        *(signal_panel(SIGNALS[name], docs, 12) for name in TOP_SIGNALS),
        *_course_panels(),
    ]
    return run_board(
        "Run health",
        "sentinel-run-health",
        "Whether one training run is healthy, since when not, why, and what to do.",
        panels,
        [CLUSTER_VARIABLE, RUN_VARIABLE, ATTEMPT_VARIABLE],
    )


def _stat_panels() -> Iterator[Any]:
    query = PanelQuery(f"max by (state) (sentinel_run_state{RUN} == 1)", "{{state}}")
    yield state_panel(
        small_options("State", "State of the run; no data if no agent exports it.", query.expr),
        query,
        STATE_COLOURS,
    )
    yield small_stat_panel(
        "Alerts firing",
        "Warning and critical alerts; the panel Detectors names them.",
        firing_alerts(RUN_MATCHERS),
        colours={0: GOOD, 1: BAD},
    ).span(2)
    for name in ("kl_ref", "reward"):
        signal = SIGNALS[name]
        expr = f"{signal.metric}{RUN}"
        yield small_stat_panel(label_of(signal.name), signal.help, expr, unit=unit_of(signal))
    yield small_stat_panel(
        "Steps per minute",
        "Zero during an evaluation or a save.",
        f"60 * sum(rate(sentinel_steps_total{RUN}[$__rate_interval]))",
        unit="cpm",
    )
    yield small_stat_panel(
        "Goodput",
        "Share of productive time in the selected range.",
        goodput(RUN_MATCHERS, "$__range"),
        unit="percentunit",
    )
    yield small_stat_panel(
        "Time since last step",
        "If far above the step time, the run may hang.",
        f"time() - max(sentinel_last_step_timestamp_seconds{RUN})",
        unit="s",
    )
    yield small_stat_panel(
        "Ranks running",
        "If fewer than were started, a rank has died or ended.",
        f"sum(sentinel_ranks_running{RUN})",
    ).span(2)
    yield small_stat_panel(
        "NaN or infinite",
        "Number of NaN or infinite values in the selected time range.",
        f"sum(increase(sentinel_nonfinite_total{RUN}[$__range])) or vector(0)",
        colours={0: GOOD, 1: BAD},
    ).span(2)


def _case_panel() -> Any:
    options = PanelOptions(
        "Cases",
        "The unresolved cases: what is wrong, since which step, and the last checkpoint before "
        "that. Facts and remedy are on the agent's web page. Metric: sentinel_case_info",
        unit="none",
        width=24,
        height=5,
        links={"Causes": diagnosis_url()},
    )
    labels = ("severity", "title", "cause", "rank")
    info = PanelQuery(f"max by (case, {', '.join(labels)}) (sentinel_case_info{RUN})")
    values = {
        "Began at step": PanelQuery(f"max by (case) (sentinel_case_onset_step{RUN})"),
        "Last good step": PanelQuery(f"max by (case) (sentinel_case_last_good_step{RUN})"),
    }
    panel = table_panel(options, info, values, {name: name.capitalize() for name in labels})
    column_colours(panel, "Severity", SEVERITY_COLOURS)
    return panel


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
        f"max by (cause) (sentinel_case_confidence{RUN} "
        # A cause that is named makes another series, which may overlap with the first.
        f"* on (cluster, run, case) group_left (cause) "
        f"topk by (cluster, run, case) (1, sentinel_case_info{RUN}))",
        "{{cause}}",
    )
    return confidence_timeline_panel(options, query, {MIN_CONFIDENCE: WARN, 0.9: BAD})


def _detector_panel() -> Any:
    options = PanelOptions(
        "Detectors",
        "The detectors that fired in the selected range, red while they do. A click leads to the "
        "runbook. Metric: sentinel_alert_firing",
        width=24,
    )
    fired = f"max by (detector) (max_over_time(sentinel_alert_firing{RUN}[$__range] @ end())) > 0"
    firing = f"max by (detector) (sentinel_alert_firing{RUN}) and on (detector) ({fired})"
    panel = state_timeline_panel(
        options, PanelQuery(firing, "{{detector}}"), {0: ("clear", GOOD), 1: ("firing", BAD)}
    )
    runbook = runbook_url("${__field.labels.detector}")
    return panel.no_value("none fired").data_links([link("Runbook", runbook)])


def _course_panels() -> Iterator[Any]:
    yield time_use_panel()
    yield departures_panel(12)
    nonfinite = lines_panel(
        "NaN or infinite values",
        "NaN or infinite values by signal. In the gradient norm alone, loss scaling may be the "
        "reason; in the loss, resume from a checkpoint.",
        PanelQuery(
            f"sum by (signal) (increase(sentinel_nonfinite_total{RUN}[$__rate_interval]))",
            "{{signal}}",
        ),
        width=12,
    )
    yield nonfinite.no_value("none")
    yield lines_panel(
        "Nodes",
        "Number of nodes by state. The agent's page names lost nodes.",
        PanelQuery(f"max by (state) (sentinel_nodes{RUN})", "{{state}}"),
        width=12,
    )


def time_use_panel() -> Any:
    """What the time of the run is used for."""
    options = PanelOptions(
        "Use of time",
        "Share of the time by activity; productive is goodput. Lost are steps that are done again "
        "after a restart. Metric: sentinel_run_time_seconds_total",
        unit="percentunit",
    )
    rate = f"rate(sentinel_run_time_seconds_total{RUN}[$__rate_interval])"
    # The time of a step is known at its end.
    share = f"sum by (activity) ({rate}) / on () group_left () (sum({rate}) > 0)"
    return stacked_panel(options, PanelQuery(share, "{{activity}}"), _ACTIVITY_COLOURS)
