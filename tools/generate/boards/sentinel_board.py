"""The board of sentinel itself: its agents, its errors, its deliveries and its overhead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tools.generate.boards.shared_panels import (
    AVERAGE,
    CLUSTER,
    CLUSTER_VARIABLE,
    RUN,
    RUN_MATCHERS,
    RUN_VARIABLE,
    extremes,
    lines_panel,
    of_all_nodes,
    run_board,
    small_stat_panel,
)
from tools.generate.panels import (
    BAD,
    GOOD,
    WARN,
    PanelOptions,
    PanelQuery,
    collapsible_row,
    stat_panel,
    time_series_panel,
)
from tools.generate.recording_rules import notifications, overhead_per_step


def sentinel_board() -> str:
    """JSON of the board."""
    panels = [
        *_stat_panels(),
        collapsible_row("Overhead"),
        *_overhead_panels(),
        collapsible_row("Deliveries and coverage"),
        _counter_panel("sink_deliveries", "outcome", "Test a sink with `sentinel notify test`."),
        *_coverage_panels(),
        collapsible_row("Errors", _error_panels()),
    ]
    return run_board(
        "Sentinel itself",
        "sentinel-itself",
        "Whether the monitoring works: agents, errors, dropped records, deliveries and overhead.",
        panels,
        [CLUSTER_VARIABLE, RUN_VARIABLE],
    )


def _stat_panels() -> Iterator[Any]:
    yield stat_panel(
        PanelOptions(
            "Agents unreachable",
            "Of all runs. Start them with `sentinel agent --run <run>`. Metric: up",
            width=3,
            height=4,
        ),
        PanelQuery(f'count(up{{{CLUSTER},job="sentinel"}} == 0) or vector(0)'),
        {0: GOOD, 1: BAD},
    )
    yield small_stat_panel(
        "Last turn ago",
        "Seconds since the agent last evaluated records; the slowest agent.",
        f"max({of_all_nodes('sentinel_agent_loop_seconds')})",
        unit="s",
        colours={0: GOOD, 10: WARN, 60: BAD},
    )
    yield small_stat_panel(
        "Not delivered",
        "Notifications that were rejected, or that are retried for longer than a minute.",
        f"sum(sentinel_alerts_undelivered{RUN}) or vector(0)",
        colours={0: GOOD, 1: BAD},
    )
    yield small_stat_panel(
        "Delivered",
        "Notifications accepted by receivers in the selected range.",
        f"round(sum({notifications(RUN_MATCHERS, '$__range')}))",
    )
    errors = " or ".join(
        f"increase(sentinel_{name}_total{RUN}[$__range])"
        for name in ("client_errors", "detector_errors", "config_errors", "node_read_errors")
    )
    yield small_stat_panel(
        "Errors",
        "In trainers, detectors, settings and measurements, in the selected range.",
        f"round(sum({errors})) or vector(0)",
        colours={0: GOOD, 1: BAD},
    )
    yield small_stat_panel(
        "Dropped records",
        "Records that detectors did not see in the selected range.",
        f"round(sum(increase(sentinel_dropped_records_total{RUN}[$__range]))) or vector(0)",
        colours={0: GOOD, 1: WARN},
    )
    yield small_stat_panel(
        "Storage degraded",
        "1 if the run is stored in memory only, or if its database was replaced.",
        f"max(sentinel_storage_degraded{RUN}) or vector(0)",
        colours={0: GOOD, 1: WARN},
    )
    yield small_stat_panel(
        "Overhead per step",
        "Time that the client takes of a step of a rank, in the selected range.",
        overhead_per_step(RUN_MATCHERS, "$__range"),
        unit="s",
    )


def _overhead_panels() -> Iterator[Any]:
    yield lines_panel(
        "Overhead per step",
        "Time that the client takes of a step of a rank.",
        PanelQuery(overhead_per_step(RUN_MATCHERS, "$__rate_interval"), "client"),
        unit="s",
    )
    share = f"rate(sentinel_client_overhead_seconds_total{RUN}[$__rate_interval])"
    options = PanelOptions(
        "Client overhead",
        "Share of a rank's time spent in the client. "
        "Metric: sentinel_client_overhead_seconds_total",
        unit="percentunit",
        width=8,
    )
    means = PanelQuery(f"avg({share})", "mean"), PanelQuery(f"max({share})", "highest rank")
    yield time_series_panel(options, means)
    loop, measured = "sentinel_agent_loop_seconds", "sentinel_machine_sample_timestamp_seconds"
    yield lines_panel(
        "Agent loop",
        "Time since the last turn of the main loop. A turn takes about 0.1 s.",
        _extreme_agents(of_all_nodes(loop), of_all_nodes(loop, AVERAGE)),
        unit="s",
    )
    duration, samples = (
        f'scrape_{name}{{{CLUSTER},job="sentinel"}}'
        for name in ("duration_seconds", "samples_scraped")
    )
    yield lines_panel(
        "Scrape time",
        "How long Prometheus takes to read each agent.",
        _extreme_agents(duration, AVERAGE.format(duration)),
        unit="s",
    )
    yield lines_panel(
        "Series",
        "Samples of each scrape of an agent.",
        _extreme_agents(samples, AVERAGE.format(samples)),
    )
    yield lines_panel(
        "Age of hardware measurements",
        "Time since the last measurement of each part. One that grows has stopped.",
        PanelQuery(
            extremes(
                f"time() - ({of_all_nodes(measured)})",
                of_all_nodes(measured, AVERAGE),
                "cluster, instance, part",
            ),
            "{{instance}} {{part}}",
        ),
        unit="s",
    )


def _extreme_agents(expr: str, ranked: str) -> PanelQuery:
    return PanelQuery(extremes(expr, ranked, "cluster, instance"), "{{instance}}")


def _error_panels() -> Iterator[Any]:
    yield _counter_panel("sink_reports", "outcome", "Reports attached to the ends of cases.")
    yield _counter_panel("dropped_records", "reason", "Records that detectors do not see.")
    yield _counter_panel(
        "client_errors", "rank", "Errors suppressed inside the trainer; please report them."
    )
    yield _counter_panel(
        "detector_errors",
        "detector",
        "After three the detector is off for the run; please report it.",
    )
    yield _counter_panel("config_errors", "setting", "Invalid settings that the agent ignores.")
    yield _counter_panel("node_read_errors", "part", "Failed reads of hardware metrics.")
    yield _counter_panel(
        "head_connection_rejected",
        "reason",
        "Messages of other agents that were rejected: compare tokens and versions.",
    )


def _coverage_panels() -> Iterator[Any]:
    yield lines_panel(
        "Signals that detectors read",
        "Signals of the run that show how well it learns.",
        PanelQuery(f"sentinel_monitored_signals{RUN}", "signals"),
        width=8,
    )
    yield lines_panel(
        "Keys that no detector reads",
        "Logged keys that look like training signals; map them in `[keys]`.",
        PanelQuery(f"sentinel_unmonitored_keys{RUN}", "keys"),
        width=8,
    )
    yield lines_panel(
        "Patches",
        "Ranks by the state of each integration's patch.",
        PanelQuery(f"sentinel_patch_ranks{RUN}", "{{integration}} {{state}}"),
        width=12,
    )
    yield lines_panel(
        "Versions",
        "Agents by version of sentinel.",
        PanelQuery(f"count by (version) (sentinel_build_info{{{CLUSTER}}})", "{{version}}"),
        width=12,
    )


def _counter_panel(name: str, label: str, text: str) -> Any:
    family = f"sentinel_{name}_total"
    panel = lines_panel(
        name.replace("_", " ").capitalize(),
        text,
        PanelQuery(
            f"sum by ({label}) (increase({family}{RUN}[$__rate_interval]))", f"{{{{{label}}}}}"
        ),
    )
    return panel.no_value("none")
