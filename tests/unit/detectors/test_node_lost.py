"""Tests of the detector node_lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentinel.cluster.heartbeats import head_watch_heartbeat
from sentinel.detectors.node_lost import NodeLost
from sentinel.detectors.run_died import RunDied
from sentinel.detectors.run_stalled import RunStalled
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.notification import NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.engine import Engine


def heartbeat(
    lost="", hosts="", *, time=0.0, silent=12.0, running=2.0, idle=12.0, attempt=0, **attributes
):
    """A heartbeat as the head makes it from those of all nodes."""
    values = {
        "ranks_running": running,
        "ranks_gone": 0.0,
        "ranks_failed": 0.0,
        "idle_seconds": idle,
        "nodes": 2.0,
        "nodes_lost": float(len(hosts.split(",")) if hosts else 0),
        "lost_seconds": silent if hosts else 0.0,
    }
    attributes = {
        "state": "running",
        "died_ranks": "",
        "failed_ranks": "",
        "straggler_ranks": "0,1",
        **attributes,
    }
    if lost and idle + 5.0 >= silent and running:
        attributes |= {"straggler_ranks": lost, "blocked_by": "node_lost"}
    attributes |= {"lost_ranks": lost, "lost_nodes": hosts}
    return Record("run", WHOLE_RUN, 812, time, Event.HEARTBEAT, values, attributes, attempt=attempt)


def test_nodes_that_all_report_are_clear():
    assert isinstance(NodeLost().update(heartbeat()), Clear)


def test_a_silent_node_is_named_with_its_ranks():
    finding = NodeLost().update(heartbeat("8,9,10,11,12,13,14,15", "node-1"))

    assert finding.summary == (
        "Node node-1 (ranks 8-15) has not reported for 12 s; no rank has passed step 812 since."
    )
    assert finding.severity is None
    assert (finding.evidence["hosts"], finding.evidence["ranks"]) == ("node-1", "8-15")
    assert finding.evidence["training"] == "stopped"


def test_several_lost_nodes_are_one_summary():
    ranks = ",".join(map(str, [*range(4), *range(6, 8)]))
    finding = NodeLost().update(heartbeat(ranks, "a,b,c,d,e,f"))

    assert finding.summary.startswith(
        "Nodes a, b, c, d and 2 more (ranks 0-3, 6-7) have not reported"
    )


def test_a_single_rank_is_not_a_range():
    assert "Node b (rank 3) has not" in NodeLost().update(heartbeat("3", "b")).summary


def test_only_the_agent_is_lost_if_training_continues():
    finding = NodeLost().update(heartbeat("2,3", "b", idle=0.4))

    assert finding.severity is Severity.WARNING
    assert finding.summary.endswith(
        "; the other ranks continue, so only its agent or its network connection is lost."
    )


def test_ended_ranks_do_not_count_as_running():
    finding = NodeLost().update(heartbeat("2,3", "b", running=0.0))

    assert finding.severity is None
    assert finding.summary.endswith("; no other rank is running.")


@pytest.mark.parametrize(("idle", "severity"), [(30.0, None), (0.5, Severity.WARNING)])
def test_a_lost_head_is_reported_by_another_agent(idle, severity):
    own = Record(
        "run", WHOLE_RUN, 812, 0.0, Event.HEARTBEAT,
        {"ranks_running": 2.0, "idle_seconds": idle}, {"straggler_ranks": "2,3"},
    )  # fmt: skip
    finding = NodeLost().update(head_watch_heartbeat(own, "node-0", 20.0))

    start = "The head agent on node-0 has not reported for 20 s; the run is not monitored"
    assert finding.summary.startswith(start)
    assert ("no rank has passed step 812" in finding.summary) == (severity is None)
    assert finding.severity is severity


@pytest.mark.parametrize("cause", [{"cause": "interrupted"}, {}])
def test_an_interrupted_first_rank_is_not_named(cause):
    """Although another rank has raised since, because the node is missing."""
    known = {**cause, "failed_ranks": "1", "failed_seconds_ago": "1.0"}
    own = heartbeat("2,3", "node-1", **known, failure_origin="node_lost")

    assert "first_failed_rank" not in NodeLost().update(own).evidence
    assert (
        "first_failed_rank"
        not in NodeLost().update(head_watch_heartbeat(own, "node-0", 20.0)).evidence
    )


def test_a_rank_that_is_killed_while_the_head_is_silent_is_named_first():
    killed = {"cause": "died", "died_ranks": "2,3", "culprit_ranks": "3", "signal": "SIGKILL"}
    own = heartbeat("", "", **killed, failed_seconds_ago="1.0")
    finding = NodeLost().update(head_watch_heartbeat(own, "node-0", 41.0))

    assert finding.summary == (
        "Rank 3 was killed by SIGKILL, and the head agent on node-0 has not reported for 41 s; the "
        "run is not monitored."
    )
    assert (finding.rank, finding.severity) == (3, None)


@pytest.mark.parametrize("signal", [{"signal": "SIGABRT"}, {}])
def test_a_rank_that_crashed_after_the_head_was_lost_is_a_consequence(signal):
    own = heartbeat(
        cause="died", died_ranks="3", culprit_ranks="3", failed_seconds_ago="1.0", **signal
    )
    finding = NodeLost().update(head_watch_heartbeat(own, "node-0", 41.0))

    assert finding.summary.startswith("The head agent on node-0 has not reported")
    assert finding.rank is None


def detect(*records, detectors=(NodeLost, RunDied, RunStalled)):
    """Reason, detector and severity of each notification for these records."""
    engine = Engine({kind.__name__: kind for kind in detectors})
    notifications = [
        notification
        for record in records
        for notification in engine.process(record).case_notifications
        if notification.reason is not NotificationReason.UPDATED
    ]
    assert not engine.error_counts
    return [(p.reason, p.incident.key.detector, p.incident.severity) for p in notifications]


def test_a_dead_node_raises_one_incident_while_the_others_stall():
    steps = [Record("run", WHOLE_RUN, i, float(i)) for i in range(20)]
    heartbeats = [
        heartbeat("2,3", "b", time=20.0 + s, silent=12.0 + s, idle=12.0 + s) for s in range(600)
    ]

    assert detect(*steps, *heartbeats) == [
        (NotificationReason.OPENED, "NodeLost", Severity.CRITICAL)
    ]


CUT = [
    *(Record("run", WHOLE_RUN, i, float(i)) for i in range(20)),
    *(heartbeat("2,3", "b", time=32.0 + s, silent=12.0 + s, idle=12.0 + s) for s in range(48)),
]
"""Nodes that do not reach each other for a minute."""


def test_a_cut_is_one_case_that_ends_when_the_ranks_go_on():
    """TCP retransmits 42 s after a cut of 60 s: its intervals double."""
    healed = [heartbeat(time=80.0 + s, idle=60.0 + s) for s in range(45)]
    steps = [heartbeat(time=125.0 + s, idle=0.5) for s in range(60)]
    opened = (NotificationReason.OPENED, "NodeLost", Severity.CRITICAL)

    assert detect(*CUT, *healed) == [opened]
    assert detect(*CUT, *healed, *steps) == [
        opened, (NotificationReason.RESOLVED, "NodeLost", Severity.CRITICAL)
    ]  # fmt: skip


@pytest.mark.fault("A17")
@pytest.mark.parametrize("cut", [20.0, 60.0, 600.0])
def test_ranks_that_do_not_go_on_after_a_node_reports_again_are_a_stall(cut):
    """Found the length of the cut after its end, or after the usual limit or two minutes."""
    steps = [Record("run", WHOLE_RUN, i, float(i)) for i in range(20)]
    lost = [
        heartbeat("2,3", "b", time=20.0 + s, silent=float(s), idle=float(s))
        for s in range(12, int(cut))
    ]
    healed = [heartbeat(time=20.0 + cut + s, idle=cut + s) for s in range(150)]
    detector = RunStalled()
    found = [r for r in (*steps, *lost, *healed) if isinstance(detector.update(r), Finding)]

    since = found[0].time - 20.0 - cut
    assert since == pytest.approx(max(30.0, min(cut, 120.0)), abs=2.0)


def test_a_suspended_rank_is_found_although_a_node_is_lost():
    """`SIGSTOP` of a rank of the head's node while the link of the other node is cut."""
    suspended = {"straggler_ranks": "1", "blocked_by": "signal", "suspended_processes": "1:7:a"}
    own = heartbeat("", "", **suspended, time=60.0, idle=40.0)
    own = replace(own, values={**own.values, "nodes_lost": 1.0, "lost_seconds": 40.0})
    stalled = RunStalled()
    for step in range(20):
        stalled.update(Record("run", WHOLE_RUN, step, float(step)))

    assert "rank 1 is suspended by SIGSTOP" in stalled.update(own).summary
    assert NodeLost().update(own).evidence["training"] == "stopped"


def test_a_stall_after_a_lost_agent_is_found():
    steps = [Record("run", WHOLE_RUN, i, float(i)) for i in range(20)]
    heartbeats = [
        heartbeat("2,3", "b", time=20.0 + s, silent=12.0 + s, idle=0.2) for s in range(30)
    ]
    stall = [
        heartbeat("2,3", "b", time=50.0 + s, silent=42.0 + s, idle=float(s)) for s in range(40)
    ]

    assert detect(*steps, *heartbeats, *stall) == [
        (NotificationReason.OPENED, "NodeLost", Severity.WARNING),
        (NotificationReason.OPENED, "RunStalled", Severity.WARNING),
    ]


@pytest.mark.parametrize("attempt", [0, 1], ids=["node reports again", "run restarted without it"])
def test_it_ends_when_the_node_reports_or_the_run_continues_without_it(attempt):
    after = [heartbeat(time=30.0 + s, idle=0.1, attempt=attempt) for s in range(60)]

    assert [reason for reason, *_ in detect(heartbeat("2,3", "b"), *after)] == [
        NotificationReason.OPENED,
        NotificationReason.RESOLVED,
    ]


def test_a_single_killed_rank_is_no_lost_node():
    dead = heartbeat(died_ranks="3", cause="died", time=5.0)

    assert isinstance(NodeLost().update(dead), Clear)
    later = heartbeat(died_ranks="3", cause="died", time=7.0)
    assert [detector for _, detector, _ in detect(dead, later)] == ["RunDied"]


def test_non_finite_counts_are_clear():
    record = heartbeat("2,3", "b")
    odd = Record("run", WHOLE_RUN, 1, 0.0, Event.HEARTBEAT, {"nodes_lost": float("nan")})

    assert isinstance(NodeLost().update(odd), Clear)
    assert isinstance(NodeLost().update(record), Finding)


def test_the_rank_that_failed_first_is_named():
    known = {"cause": "exception", "exception": "DistBackendError", "failed_seconds_ago": "12.0"}
    ranks = {"failed_ranks": "0,1", "culprit_ranks": "1", "following_ranks": "0"}
    record = heartbeat("2,3", "node-1", **known, **ranks, failure_origin="node_lost")
    assert NodeLost().update(record).evidence["first_failed_rank"] == (
        "rank 1 raised DistBackendError"
    )
