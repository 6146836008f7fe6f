"""Prometheus recording rules: what a team reads of one run and of all its runs, computed once.

Names follow `level:metric:operations` of the Prometheus documentation; the level is `run` or
`fleet`. Runs of several clusters in one Prometheus may have one name. A window of an hour or a day
holds many scrapes, so that the open left end of a range in Prometheus 3 does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

_ACTIVE = "max by (cluster, run) (sentinel_run_active) == 1"


@dataclass(frozen=True)
class RecordingRule:
    """Name of the recorded series, and the expression whose value it has."""

    record: str
    expr: str


def goodput(selector: str = "", window: str = "1h") -> str:
    """PromQL of the productive share of the time of each run within the window."""
    rates = "sum by (cluster, run) (rate(sentinel_run_time_seconds_total{{{}}}[{}]))"
    productive = rates.format(_join(selector, 'activity="productive"'), window)
    return f"{productive} / ({rates.format(selector, window)} > 0)"


def overhead_per_step(selector: str = "", window: str = "5m") -> str:
    """PromQL of the seconds that the client of a rank takes of each step, as a mean over ranks."""
    seconds = "sentinel_client_overhead_seconds_total"
    steps = f"sum by (cluster, run) (rate(sentinel_steps_total{{{selector}}}[{window}]))"
    by_rank = f"sum by (cluster, run, rank) (rate({seconds}{{{selector}}}[{window}]))"
    return f"avg by (cluster, run) ({by_rank}) / ({steps} > 0)"


def firing_alerts(selector: str = "") -> str:
    """PromQL of the number of detectors of each run that fire as warning or critical."""
    severe = _join(selector, 'severity=~"warning|critical"')
    firing = f"max by (cluster, run, detector, severity) (sentinel_alert_firing{{{severe}}})"
    return f"sum by (cluster, run) ({firing})"


def notifications(selector: str = "", window: str = "1d") -> str:
    """PromQL of the notifications of each run that receivers accepted within the window."""
    delivered = _join(selector, 'outcome=~".+:delivered"')
    accepted = f"increase(sentinel_sink_deliveries_total{{{delivered}}}[{window}])"
    return f"sum by (cluster, run) ({accepted})"


def _join(*matchers: str) -> str:
    return ",".join(filter(None, matchers))


RECORDING_RULES = (
    RecordingRule("run:sentinel_goodput:ratio_rate1h", goodput()),
    RecordingRule(
        "run:sentinel_ranks_running:max1h",
        "max by (cluster, run) (max_over_time(sentinel_ranks_running[1h]))",
    ),
    # Weighted by ranks: an idle run of 512 GPUs costs more than one of 8.
    RecordingRule(
        "fleet:sentinel_goodput:ratio_rate1h",
        "sum(run:sentinel_goodput:ratio_rate1h * "
        "on (cluster, run) run:sentinel_ranks_running:max1h) / "
        "sum(run:sentinel_ranks_running:max1h and "
        "on (cluster, run) run:sentinel_goodput:ratio_rate1h)",
    ),
    RecordingRule("run:sentinel_alerts_firing:sum", firing_alerts()),
    RecordingRule(
        "fleet:sentinel_healthy_runs:ratio",
        f"avg((run:sentinel_alerts_firing:sum == bool 0) and on (cluster, run) {_ACTIVE})",
    ),
    RecordingRule("run:sentinel_sink_deliveries:increase1d", notifications()),
    # Also of cases that are over, of each its last estimate of the onset.
    RecordingRule(
        "fleet:sentinel_case_time_to_detect_seconds:avg1d",
        "avg(max by (cluster, run, case)"
        " (last_over_time(sentinel_case_time_to_detect_seconds[1d])))",
    ),
    RecordingRule("run:sentinel_client_overhead_per_step_seconds:rate5m", overhead_per_step()),
)
