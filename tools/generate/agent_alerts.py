"""Alerts on what an agent cannot report itself, written by hand."""

from __future__ import annotations

from dataclasses import dataclass

from tools.generate.case_alert import ACTIVE_SELECTOR
from tools.generate.detector_docs import alert_name


@dataclass(frozen=True)
class AgentAlert:
    """One alert. `for_duration` and `keep_firing_for` are Prometheus durations; empty is none."""

    name: str
    expr: str
    severity: str
    summary: str
    remedy: str
    checks: tuple[str, ...]
    for_duration: str = ""
    keep_firing_for: str = "15m"

    @property
    def alert(self) -> str:
        """Name of its Prometheus alert."""
        return alert_name(self.name)


AGENT_ALERTS = (
    AgentAlert(
        name="run_vanished",
        # A run that ended exports 0 before its series disappear. An agent that turned out to be a
        # follower has not vanished: the head reports a lost node.
        expr=(
            "(max by (run) (last_over_time(sentinel_run_active[30m])) == 1) "
            "unless on (run) max by (run) (sentinel_run_active) "
            "unless on (run) max by (run) "
            '(last_over_time(sentinel_cluster_role_info{role="follower"}[30m]))'
        ),
        for_duration="1m",
        severity="critical",
        summary="Run {{ $labels.run }} was training, and no agent exports it any more",
        remedy=(
            "Trainer and agent are gone, or their node is. Check the node first, then resume from "
            "the last checkpoint."
        ),
        checks=(
            "Is the node up and reachable? If a node is lost, so are its trainer and its agent.",
            "Has the scheduler ended the job (preemption, time limit)? See its log.",
            (
                "Is only the agent gone? Then the training continues without monitoring: start "
                "`sentinel agent --run <run>` on its node."
            ),
        ),
    ),
    AgentAlert(
        name="records_stopped",
        # The agent's own detector knows how long steps take and fires much sooner. This alert
        # covers an agent that no longer works.
        expr=(
            "(time() - max by (run) (sentinel_last_step_timestamp_seconds)) > 1800 "
            "and on (run) max by (run) (sentinel_run_active) == 1 "
            'unless on (run) sentinel_case_incident{detector="run_stalled"}'
        ),
        severity="critical",
        summary="Run {{ $labels.run }} has taken no step for 30 minutes",
        remedy=(
            "Check the ranks: in a hang, one rank is behind the others. If steps do take this "
            "long, raise the limit of this rule."
        ),
        checks=(
            (
                "Does a step, an evaluation or a checkpoint take longer than 30 minutes? Then this "
                "rule is too strict for the run."
            ),
            "Which rank is behind? See `sentinel_rank_last_step_timestamp_seconds`.",
            (
                "Are records dropped? Then the training continues and only the records are "
                "missing: see `sentinel_dropped_records_total`."
            ),
        ),
    ),
    AgentAlert(
        name="agent_down",
        # An agent that exits after a finished run is down as well, which is no problem. The loss of
        # a follower node is reported by its head. An agent that was never reached has no run.
        expr=(
            f"(max by (job, instance, run) (last_over_time({ACTIVE_SELECTOR}[1h])) == 1 "
            'and on (job, instance) up{job="sentinel"} == 0 unless on (job, instance) '
            "(max by (job, instance, head) "
            '(last_over_time(sentinel_cluster_role_info{role="follower"}[1h])) '
            'and on (head) sentinel_cluster_role_info{role="head"})) '
            'or (up{job="sentinel"} == 0 unless on (job, instance) '
            f"last_over_time({ACTIVE_SELECTOR}[1h]))"
        ),
        for_duration="1m",
        severity="warning",
        summary=(
            "The agent {{ with $labels.run }}of run {{ . }} {{ end }}at {{ $labels.instance }} "
            "does not answer"
        ),
        remedy="Start it again. Records written meanwhile stay in shared memory and are read then.",
        checks=(
            (
                "Is the agent's process alive? If not, `sentinel agent --run <run>` continues "
                "where it stopped."
            ),
            "Is it alive but unreachable? Check firewall, token and scrape target.",
        ),
    ),
    AgentAlert(
        name="agent_stuck",
        # Its port answers, so that it is not down. A turn of the loop takes about 0.1 s.
        expr="max by (job, instance, run) (sentinel_agent_loop_seconds) > 60",
        severity="critical",
        summary=(
            "The agent of run {{ $labels.run }} at {{ $labels.instance }} has evaluated nothing "
            "for {{ $value | humanizeDuration }}"
        ),
        remedy="The run is not monitored meanwhile. Check the disk of the agent's directory first.",
        checks=(
            "Does a disk not answer? `cat /proc/<pid>/stack` of the agent shows where it waits.",
            "Is it short of CPU time? It has a lower priority than the training.",
            (
                "`/-/healthy` of the agent fails as well: a liveness probe restarts it. By hand: "
                "kill its process; the trainer starts another, which continues where it stopped."
            ),
        ),
    ),
    AgentAlert(
        name="head_unreachable",
        # One alert per head, for any number of nodes.
        expr=(
            "count by (head) (max by (run, head) (sentinel_cluster_role_info) "
            "and on (run) max by (run) (sentinel_head_connection_up) == 0 "
            f"and on (run) max by (run) ({ACTIVE_SELECTOR}) == 1)"
        ),
        for_duration="3m",
        severity="warning",
        summary="{{ $value }} nodes cannot reach the head agent of their run",
        remedy=(
            "Run `sentinel doctor` on one of these nodes: it prints the reason and the remedy. "
            "Training is not affected; records are buffered until the head is reached."
        ),
        checks=(
            "Which nodes are affected? Those with `sentinel_head_connection_up` 0.",
            (
                "Is the head's agent gone (`SentinelAgentDown`, `SentinelRunVanished`)? "
                "Start `sentinel agent --run <run>` on the node of rank 0."
            ),
            "Are TCP ports 14000 to 17999, or the port of `[cluster] head`, open between nodes?",
            (
                "Do all nodes have the same `[cluster] token` and the same version of sentinel? "
                "`sentinel_head_connection_rejected_total` counts rejected messages by reason."
            ),
        ),
    ),
    AgentAlert(
        name="detector_failing",
        expr="max by (run, detector) (sentinel_detector_errors_total) > 0",
        severity="warning",
        summary="Detector {{ $labels.detector }} of run {{ $labels.run }} has failed",
        remedy="Report it with the agent's log. After three failures it is off for this run.",
        checks=("See the traceback in the agent's log. The other detectors are not affected.",),
    ),
    AgentAlert(
        name="records_dropped",
        # A counter that starts above zero has no increase, so the expression tests for both.
        expr=(
            "sum by (run, reason) (increase(sentinel_dropped_records_total[15m])) > 0 or "
            "sum by (run, reason) (sentinel_dropped_records_total > 0 "
            "unless sentinel_dropped_records_total offset 15m)"
        ),
        severity="info",
        summary="Records of run {{ $labels.run }} are dropped: {{ $labels.reason }}",
        remedy="Look up the drop reason below. Detectors do not see dropped records.",
        checks=(
            (
                "`overrun`: the agent did not read for longer than the shared-memory ring can "
                "buffer."
            ),
            "`late`: a rank's record arrived after its step was closed.",
            "`type`, `shape`, `key`, `range`: a logged value is not a single number.",
        ),
    ),
    AgentAlert(
        name="sink_failing",
        expr="max by (run, sink, state) (sentinel_alerts_undelivered) > 0",
        severity="warning",
        summary=(
            "Notifications of run {{ $labels.run }} are not delivered to {{ $labels.sink }} "
            "({{ $labels.state }}: {{ $value }})"
        ),
        remedy="Test the sink with `sentinel notify test`; correct its URL or its token.",
        checks=(
            "What is the error? `sentinel status` and the agent's page show it, and since when.",
            "`dead`: the receiver rejected a notification permanently, or failed for a day.",
            "`retrying`: the receiver has not answered, or has limited the rate, for a minute.",
        ),
    ),
    AgentAlert(
        name="storage_degraded",
        expr="max by (run, reason) (sentinel_storage_degraded) > 0",
        severity="warning",
        summary="The storage of run {{ $labels.run }} is degraded: {{ $labels.reason }}",
        remedy="`sentinel status` shows since when, why and what to do. Monitoring continues.",
        checks=(
            (
                "`replaced`: the database could not be read. It is kept beside the new one, whose "
                "history may have gaps. Check the disk, then delete the set-aside file: the alert "
                "ends within a minute."
            ),
            (
                "`memory`: the run directory cannot be used. What is stored is lost if the node "
                "fails. Make space, or mount the directory writable."
            ),
        ),
    ),
    AgentAlert(
        name="watchdog",
        expr="vector(1)",
        severity="none",
        summary="Alerting works",
        remedy="Nothing: this alert always fires. Route it to a service that alerts when it stops.",
        checks=(
            "If it is missing, Prometheus, Alertmanager or the connection between them is broken.",
        ),
        keep_firing_for="",
    ),
)
