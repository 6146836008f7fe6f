"""Watches: alerts on what an agent cannot say of itself, worded by hand."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AgentAlert:
    """One such alert. `wait` and `keep` are Prometheus durations; empty is none."""

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
        return "Sentinel" + "".join(word.capitalize() for word in self.name.split("_"))


_ACTIVE_SELECTOR = '{__name__=~"sentinel_(run|node)_active"}'
"""Of a run where it is judged, and of its ranks on every other node."""

AGENT_ALERTS = (
    AgentAlert(
        name="run_vanished",
        # A run that ended well said so (0) before its series went away. An agent of which it turned
        # out that another judges the run has not vanished: of a lost node that other one tells.
        expr=(
            "(max by (run) (last_over_time(sentinel_run_active[30m])) == 1) "
            "unless on (run) max by (run) (sentinel_run_active) "
            "unless on (run) max by (run) "
            '(last_over_time(sentinel_cluster_role_info{role="follower"}[30m]))'
        ),
        for_duration="1m",
        severity="critical",
        summary="Run {{ $labels.run }} was training, and now nobody speaks for it",
        remedy=(
            "Trainer and agent are both gone, or their node is: look at the node first, then "
            "resume from the last checkpoint."
        ),
        checks=(
            "Is the node up, and does it answer? A lost node takes trainer and agent with it.",
            "Has the scheduler ended the job (preemption, time limit)? Its log says so.",
            (
                "Is only the agent gone? Then the training goes on unwatched: "
                "`sentinel agent --run <run>` on its node takes the run up again."
            ),
        ),
    ),
    AgentAlert(
        name="records_stopped",
        # The agent's own detector knows how long steps take and speaks much sooner. This one
        # speaks when the agent no longer does.
        expr=(
            "(time() - max by (run) (sentinel_last_step_timestamp_seconds)) > 1800 "
            "and on (run) max by (run) (sentinel_run_active) == 1"
        ),
        severity="critical",
        summary="Run {{ $labels.run }} has made no step for half an hour",
        remedy=(
            "Look at the ranks: a hang shows as one rank behind the others. If steps do take "
            "this long, raise the limit of this rule."
        ),
        checks=(
            (
                "Does the run take longer than half an hour for a step, an evaluation or a "
                "checkpoint? Then this rule is too strict for it."
            ),
            "Which rank is behind? `sentinel_rank_last_step_timestamp_seconds` tells it.",
            (
                "Are records dropped? Then the trainer steps on and only the records are missing: "
                "see `sentinel_dropped_records_total`."
            ),
        ),
    ),
    AgentAlert(
        name="agent_down",
        # An agent that leaves after a finished run is down as well, and nobody need know.
        expr=(
            'up{job="sentinel"} == 0 unless on (job, instance) '
            f"(max by (job, instance) (last_over_time({_ACTIVE_SELECTOR}[1h])) == 0)"
        ),
        for_duration="1m",
        severity="warning",
        summary="The agent at {{ $labels.instance }} does not answer",
        remedy="Start it again: what the ranks wrote meanwhile waits in memory and is read then.",
        checks=(
            (
                "Does the agent's process live? If not, `sentinel agent --run <run>` takes the run "
                "up where it was left."
            ),
            "Does it live but not answer? A firewall, a token or a wrong target can be why.",
        ),
    ),
    AgentAlert(
        name="link_down",
        # However many nodes miss one head, that is one thing to mend.
        expr=(
            "count by (head) (max by (run, head) (sentinel_cluster_role_info) "
            "and on (run) max by (run) (sentinel_head_connection_up) == 0 "
            f"and on (run) max by (run) ({_ACTIVE_SELECTOR}) == 1)"
        ),
        for_duration="3m",
        severity="warning",
        summary="{{ $value }} nodes do not reach the agent that judges their run",
        remedy=(
            "Run `sentinel doctor` on one of these nodes: it says why, and what to set. Training "
            "is not affected, and what their ranks say is kept until the agent is reached."
        ),
        checks=(
            "Which nodes are they? Those whose `sentinel_head_connection_up` is 0.",
            (
                "Is the head's agent gone (`SentinelAgentDown`, `SentinelRunVanished`)? "
                "`sentinel agent --run <run>` on the node of rank 0 takes the run up again."
            ),
            "May the nodes talk over TCP ports 14000 to 17999, or the port of `[cluster] head`?",
            (
                "Is it one `[cluster] token` and one version of sentinel on all nodes? "
                "`sentinel_head_connection_rejected_total` counts what was refused, by reason."
            ),
        ),
    ),
    AgentAlert(
        name="detector_failing",
        expr="max by (run, detector) (sentinel_detector_errors_total) > 0",
        severity="warning",
        summary="Detector {{ $labels.detector }} of run {{ $labels.run }} has failed",
        remedy="Report it with the agent's log: after three failures it is off for this run.",
        checks=("The agent's log has the traceback. The other detectors go on.",),
    ),
    AgentAlert(
        name="records_dropped",
        # A counter that begins above zero has not increased, so both are asked for.
        expr=(
            "sum by (run, reason) (increase(sentinel_dropped_records_total[15m])) > 0 or "
            "sum by (run, reason) (sentinel_dropped_records_total > 0 "
            "unless sentinel_dropped_records_total offset 15m)"
        ),
        severity="info",
        summary="Records of run {{ $labels.run }} are dropped: {{ $labels.reason }}",
        remedy="Find the reason in the list of drop reasons; detectors see less than happened.",
        checks=(
            (
                "`overrun`: the agent was away for longer than the memory between it and the ranks "
                "lasts."
            ),
            "`late`: a rank's record came after its step was closed without it.",
            "`type`, `shape`, `key`, `range`: something was logged that is not one number.",
        ),
    ),
    AgentAlert(
        name="sink_failing",
        expr=(
            "sum by (run, outcome) "
            '(increase(sentinel_sink_deliveries_total{outcome=~".*dead"}[15m])) > 0 '
            "or sum by (run, outcome) "
            '(increase(sentinel_sink_deliveries_total{outcome=~".*retry"}[15m])) > 3'
        ),
        severity="warning",
        summary="Pages of run {{ $labels.run }} do not get through ({{ $labels.outcome }})",
        remedy="Try the sink with `sentinel notify test`, and mend its address or its token.",
        checks=(
            "`dead` means that the receiver refused a page for good, or for a day.",
            "`retry` means that it does not answer, or asks for patience; pages wait meanwhile.",
        ),
    ),
    AgentAlert(
        name="watchdog",
        expr="vector(1)",
        severity="none",
        summary="Alerting works",
        remedy="Nothing: this alert always fires. Send it to a service that calls when it stops.",
        checks=("If it is missing, Prometheus, Alertmanager or the way between them is broken.",),
        keep_firing_for="",
    ),
)
