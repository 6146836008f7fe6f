"""The board of all runs: their health, goodput, open cases and notifications."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tools.generate.boards.shared_panels import (
    CLUSTER,
    CLUSTER_VARIABLE,
    lines_panel,
    run_annotations,
    small_stat_panel,
)
from tools.generate.panels import (
    BAD,
    GOOD,
    SEVERITY_COLOURS,
    STATE_COLOURS,
    WARN,
    DashboardOptions,
    LabelVariable,
    PanelOptions,
    PanelQuery,
    column_colours,
    column_link,
    column_unit,
    dashboard_json,
    link,
    state_timeline_panel,
    table_panel,
)
from tools.generate.recording_rules import (
    firing_alerts,
    goodput,
    notifications,
    overhead_per_step,
)

MATCHER = f'{CLUSTER},run=~"$run"'
RUNS = f"{{{MATCHER}}}"
"""Selects the series of the runs that are chosen, by default of all."""

_RUN_HEALTH = (
    "/d/sentinel-run-health?var-datasource=${datasource}&${cluster:queryparam}"
    "&${__url_time_range}&var-run="
)
_ACTIVE = f"max by (cluster, run) (sentinel_run_active{RUNS}) == 1"


def fleet_board() -> str:
    """JSON of the board. Each run links to its board Run health."""
    options = DashboardOptions(
        "Fleet",
        "sentinel-fleet",
        "All training runs: which are healthy, what they use their time for, what was notified.",
        (
            CLUSTER_VARIABLE,
            LabelVariable("run", f"sentinel_run_info{{{CLUSTER}}}", is_multi=True),
        ),
        page_path="/",
    )
    panels = [*_stat_panels(), _run_table(), _health_panel(), _case_table(), *_course_panels()]
    return dashboard_json(options, panels, run_annotations(RUNS))


def _stat_panels() -> Iterator[Any]:
    yield small_stat_panel(
        "Active runs", "Runs that train, or should.", f"count({_ACTIVE}) or vector(0)"
    )
    healthy = f"avg(({firing_alerts(MATCHER)} == bool 0) and on (cluster, run) ({_ACTIVE}))"
    yield small_stat_panel(
        "Healthy",
        "Share of the active runs in which no warning and no critical alert fires.",
        healthy,
        unit="percentunit",
        colours={0: BAD, 0.5: WARN, 1: GOOD},
    )
    ranks = f"max by (cluster, run) (max_over_time(sentinel_ranks_running{RUNS}[$__range]))"
    share = goodput(MATCHER, "$__range")
    yield small_stat_panel(
        "Goodput",
        "Share of productive time in the selected range, weighted by the ranks of each run.",
        f"sum({share} * on (cluster, run) {ranks}) / sum({ranks} and on (cluster, run) ({share}))",
        unit="percentunit",
    )
    yield small_stat_panel(
        "Cases firing",
        "Open problems that are not silenced.",
        f"sum(max by (cluster, run, case) (sentinel_case_firing{RUNS})) or vector(0)",
        colours={0: GOOD, 1: BAD},
    )
    yield small_stat_panel(
        "Notifications",
        "Accepted by receivers in the selected range.",
        f"round(sum({notifications(MATCHER, '$__range')}))",
    )
    yield small_stat_panel(
        "Ranks running",
        "Of all runs.",
        f"sum(max by (cluster, run) (sentinel_ranks_running{RUNS}))",
    )
    yield small_stat_panel(
        "Time since last step",
        "Of the active run whose last step is the longest ago.",
        f"max(time() - (max by (cluster, run) (sentinel_last_step_timestamp_seconds{RUNS}) "
        f"and on (cluster, run) ({_ACTIVE})))",
        unit="s",
    )
    yield small_stat_panel(
        "Runs that ended badly",
        "Runs that failed or died, as long as their agents export them.",
        f'sum(max by (cluster, run) (sentinel_run_state{{{MATCHER},state=~"failed|died"}})) '
        "or vector(0)",
        colours={0: GOOD, 1: BAD},
    )


def _run_table() -> Any:
    options = PanelOptions(
        "Runs",
        "One row per run; a click on its name leads to its board Run health. Metric: "
        "sentinel_run_info",
        unit="none",
        width=24,
        height=9,
    )
    labels = ("cluster", "run", "state", "framework", "algorithm", "model", "world_size")
    # After a change of its metadata, an agent that restarts may export two series for a moment.
    info = f"topk by (cluster, run) (1, sentinel_run_info{RUNS})"
    rows = (
        f"max by (cluster, run, state) (sentinel_run_state{RUNS} == 1) "
        f"* on (cluster, run) group_left (framework, algorithm, model, world_size) {info}"
    )
    values = {
        "Alerts firing": PanelQuery(firing_alerts(MATCHER)),
        "Goodput": PanelQuery(goodput(MATCHER, "$__range")),
        "Step": PanelQuery(f"max by (cluster, run) (sentinel_global_step{RUNS})"),
        "Steps per minute": PanelQuery(_steps_per_minute()),
        "Last step ago": PanelQuery(
            f"time() - max by (cluster, run) (sentinel_last_step_timestamp_seconds{RUNS})"
        ),
        "Notifications": PanelQuery(f"round({notifications(MATCHER, '$__range')})"),
    }
    columns = {name: name.capitalize().replace("_", " ") for name in labels}
    panel = table_panel(options, PanelQuery(rows), values, columns)
    column_unit(panel, "Goodput", "percentunit")
    column_unit(panel, "Last step ago", "s")
    column_colours(panel, "State", STATE_COLOURS)
    column_link(panel, "Run", "Run health", f"{_RUN_HEALTH}${{__value.raw}}")
    return panel


def _health_panel() -> Any:
    options = PanelOptions(
        "Health",
        "The worst alert of each run that fires. Metric: sentinel_alert_firing",
        width=24,
        height=8,
    )

    def firing(severity: str) -> str:
        selector = f'{{{MATCHER},severity="{severity}"}}'
        return f"max by (cluster, run) (sentinel_alert_firing{selector})"

    worst = f"2 * ({firing('critical')} == 1) or ({firing('warning')} == 1)"
    query = PanelQuery(
        f"{worst} or 0 * max by (cluster, run) (sentinel_alert_firing{RUNS})", "{{run}} {{cluster}}"
    )
    states = {0: ("healthy", GOOD), 1: ("warning", WARN), 2: ("critical", BAD)}
    panel = state_timeline_panel(options, query, states)
    return panel.data_links([link("Run health", f"{_RUN_HEALTH}${{__field.labels.run}}")])


def _case_table() -> Any:
    options = PanelOptions(
        "Cases",
        "The unresolved cases of all runs. Metric: sentinel_case_info",
        unit="none",
        width=24,
        height=7,
    )
    labels = ("cluster", "run", "severity", "title", "cause", "rank", "place")
    info = PanelQuery(f"max by (case, {', '.join(labels)}) (sentinel_case_info{RUNS})")
    opened = f"time() - max by (cluster, run, case) (sentinel_case_opened_timestamp_seconds{RUNS})"
    columns = {name: name.capitalize() for name in labels}
    panel = table_panel(options, info, {"Opened ago": PanelQuery(opened)}, columns)
    column_unit(panel, "Opened ago", "s")
    column_colours(panel, "Severity", SEVERITY_COLOURS)
    column_link(panel, "Run", "Run health", f"{_RUN_HEALTH}${{__value.raw}}")
    return panel


def _course_panels() -> Iterator[Any]:
    yield lines_panel(
        "Goodput",
        "Share of productive time. A run at 0 starts, stalls or is down.",
        PanelQuery(goodput(MATCHER, "$__rate_interval"), "{{run}} {{cluster}}"),
        unit="percentunit",
        width=12,
    )
    wasted = f'{{{MATCHER},activity!="productive"}}'
    yield lines_panel(
        "Time that is not productive",
        "Number of runs in each activity, on average; lost are steps that are done again after a "
        "restart.",
        PanelQuery(
            f"sum by (activity) (rate(sentinel_run_time_seconds_total{wasted}[$__rate_interval]))",
            "{{activity}}",
        ),
        width=12,
    )
    yield lines_panel(
        "Steps per minute",
        "Zero during an evaluation or a save.",
        PanelQuery(_steps_per_minute(), "{{run}} {{cluster}}"),
        unit="cpm",
    )
    yield lines_panel(
        "Notifications",
        "Accepted by receivers. Alerts that come and go need another threshold.",
        PanelQuery(notifications(MATCHER, "$__rate_interval"), "{{run}} {{cluster}}"),
    )
    yield lines_panel(
        "Overhead of sentinel",
        "Time that the client takes of each step of a rank.",
        PanelQuery(overhead_per_step(MATCHER, "$__rate_interval"), "{{run}} {{cluster}}"),
        unit="s",
    )


def _steps_per_minute() -> str:
    return f"60 * sum by (cluster, run) (rate(sentinel_steps_total{RUNS}[$__rate_interval]))"
