"""Restarts by an elastic launcher raise no incident; failures do."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from sentinel.cluster.heartbeats import RESTART_TRUST_SECONDS, NodeHeartbeat, merge_heartbeats
from sentinel.detectors.run_died import RunDied
from sentinel.live.elastic_restart import (
    MAX_EXIT_SPREAD_SECONDS,
    REPORT_FAILURE_SECONDS,
    RESTART_WAIT_SECONDS,
    ElasticRestartTracker,
    ElasticWorker,
    is_elastic,
)
from sentinel.live.liveness import build_heartbeat
from sentinel.live.rank import LiveRank
from sentinel.model.finding import Finding
from sentinel.transport.identity import Identity
from sentinel.transport.process import Process
from sentinel.transport.ring import RingCursor
from sentinel.transport.ring_layout import RingHeader

EXITED_AT = 1000.0


class Launcher(Process):
    """A launcher that is alive if `lives` is set."""

    lives = True

    def is_alive(self):
        return self.lives


def rank(number, attempt=0, *, outcome="died", ended=EXITED_AT, moved=0.0, **stop):
    header = RingHeader(
        process=Process(1 + number, 1), identity=Identity("run", attempt, number), capacity=4096,
        created_at=0.0, position=0, sequence=0, last_step=9, last_step_index=9, last_time=0.0,
        outcome="running", backward_step_index=0, overhead_ns=0, errors=0, drop_counts=(),
    )  # fmt: skip
    return LiveRank(
        None, None, RingCursor(), header, moved, outcome, ended if outcome else 0.0, stop
    )


EXITED = [rank(0), rank(1, ended=EXITED_AT + 0.4)]


class Node:
    """Two ranks of an elastic launcher, and the findings from their heartbeats."""

    def __init__(self, lives=True):
        self.tracker, self.died = ElasticRestartTracker(), RunDied()
        self.begin(0, 0, lives=lives)

    def begin(self, attempt, restarts, lives=True):
        launcher = Launcher(1, 1)
        launcher.lives = lives
        for number in range(2):
            self.tracker.workers[attempt, number] = ElasticWorker(launcher, restarts)

    def heartbeat(self, ranks, after):
        now = EXITED_AT + after
        return self.tracker.annotate_heartbeat(build_heartbeat("run", ranks, now), ranks, now)

    def findings(self, ranks, first, last):
        """Findings with their times, from heartbeats half a second apart."""
        findings_at = []
        for half in range(int(first * 2), int(last * 2)):
            output = self.died.update(self.heartbeat(ranks, half / 2))
            if isinstance(output, Finding):
                findings_at.append((half / 2, output.summary))
        return findings_at


@pytest.fixture
def node():
    return Node()


def restarted_ranks(attempt=1):
    return [rank(number, attempt, outcome="") for number in range(2)]


@pytest.mark.fault("T4")
def test_a_membership_change_raises_no_incident(node):
    assert node.findings(EXITED, 1, 60) == []
    assert node.tracker.awaiting_restart
    node.begin(1, 0)

    assert node.findings(restarted_ranks(), 60, 90) == []
    assert not node.tracker.awaiting_restart


def test_a_failure_is_reported_once_the_restarted_ranks_run(node):
    assert node.findings(EXITED, 1, 40) == []
    node.begin(1, 1)
    findings_at = node.findings(restarted_ranks(), 40, 80)

    assert (
        findings_at[0][1] == "Rank 0 was killed at step 9 without an error message; "
        "rank 1 failed after it and 2 ranks still run."
    )
    assert 40 <= findings_at[0][0] <= findings_at[-1][0] < 40 + REPORT_FAILURE_SECONDS


@pytest.mark.fault("T4")
def test_ranks_that_are_not_restarted_are_reported(node):
    findings_at = node.findings(EXITED, 1, RESTART_WAIT_SECONDS + 10)

    assert RESTART_WAIT_SECONDS <= findings_at[0][0] <= RESTART_WAIT_SECONDS + 3
    assert not node.tracker.awaiting_restart


def test_after_the_launcher_exits_the_deaths_are_reported(node):
    assert node.findings(EXITED, 1, 5) == []
    node.begin(0, 0, lives=False)

    assert node.findings(EXITED, 5, 10)[0][0] == 5.0


def test_an_agent_that_shuts_down_waits_no_longer(node):
    assert node.findings(EXITED, 1, 5) == []
    node.tracker.is_shutting_down = True

    assert "elastic_restart" not in node.heartbeat(EXITED, 5).attributes


def test_a_rank_that_exits_slowly_raises_no_incident(node):
    exiting = [rank(0), rank(1, outcome="")]
    assert node.findings(exiting, 0, MAX_EXIT_SPREAD_SECONDS - 1) == []
    slow = [rank(0), rank(1, ended=EXITED_AT + MAX_EXIT_SPREAD_SECONDS - 1)]
    assert node.findings(slow, MAX_EXIT_SPREAD_SECONDS - 1, 60) == []
    node.begin(1, 0)

    assert node.findings(restarted_ranks(), 60, 90) == []


def test_a_rank_that_does_not_exit_is_not_being_restarted(node):
    findings_at = node.findings([rank(0), rank(1, outcome="")], 0, MAX_EXIT_SPREAD_SECONDS + 5)

    assert MAX_EXIT_SPREAD_SECONDS < findings_at[0][0] <= MAX_EXIT_SPREAD_SECONDS + 1
    assert (
        findings_at[0][1]
        == "Rank 0 was killed at step 9 without an error message; 1 rank still runs."
    )


def test_a_death_is_reported_as_soon_as_the_launcher_exits(node):
    exiting = [rank(0), rank(1, outcome="")]
    assert node.findings(exiting, 0, 3) == []
    node.begin(0, 0, lives=False)

    assert node.findings(exiting, 3, 4)[0][0] == 3.0


@pytest.mark.parametrize(
    "ranks",
    [
        [rank(0), rank(1, outcome="", moved=EXITED_AT + 3.0)],
        [rank(0), rank(1, outcome="exception")],
        [rank(0), rank(1, ended=EXITED_AT + MAX_EXIT_SPREAD_SECONDS + 1.0)],
        [rank(0), rank(1, outcome="died", collective="off: rank 1 lost")],
    ],
    ids=["one continues", "one raised", "one after the other", "one has a STOP"],
)
def test_ranks_that_do_not_exit_together_are_not_restarted(node, ranks):
    after = max(rank.ended_at for rank in ranks) - EXITED_AT + 6.0
    assert "elastic_restart" not in node.heartbeat(ranks, after).attributes


def test_a_launcher_that_is_not_elastic_is_not_waited_for():
    heartbeat = ElasticRestartTracker().annotate_heartbeat(
        build_heartbeat("run", EXITED, EXITED_AT + 1), EXITED, EXITED_AT + 1
    )

    assert "elastic_restart" not in heartbeat.attributes


def node_heartbeat(heartbeat, *, age=0.0, host="a"):
    return NodeHeartbeat(heartbeat, host, (0, 1), age, is_lost=False)


def test_with_several_nodes_all_failed_nodes_must_be_restarting(node):
    exited = node_heartbeat(node.heartbeat(EXITED, 2.0))
    others = [rank(2, outcome="exception", exception="ValueError"), rank(3, outcome="")]
    raised = NodeHeartbeat(
        build_heartbeat("run", others, EXITED_AT + 2), "b", (2, 3), 0.0, is_lost=False
    )
    running = NodeHeartbeat(
        build_heartbeat("run", [rank(2, outcome="")], EXITED_AT + 2), "b", (2,), 0.0, is_lost=False
    )

    assert (
        merge_heartbeats("run", [exited, running], EXITED_AT + 2).attributes["elastic_restart"]
        == "yes"
    )
    assert (
        "elastic_restart" not in merge_heartbeats("run", [exited, raised], EXITED_AT + 2).attributes
    )


def test_the_state_of_a_silent_node_expires(node):
    old = node_heartbeat(node.heartbeat(EXITED, 2.0), age=RESTART_TRUST_SECONDS + 1)

    assert "elastic_restart" not in merge_heartbeats("run", [old], EXITED_AT + 9).attributes


@pytest.mark.parametrize(
    ("arguments", "elastic"),
    [
        (["torchrun", "--nnodes", "1:4"], True),
        (["torchrun", "--nnodes=2:3", "x"], True),
        (["PET_NNODES=1:2"], True),
        (["torchrun", "--nnodes", "2"], False),
        (["torchrun", "--nnodes", "2:2"], False),
        (["torchrun", "--nnodes"], False),
        (["bash"], False),
    ],
)
def test_a_launcher_is_elastic_if_nodes_may_join_and_leave(arguments, elastic):
    assert is_elastic(arguments) is elastic


def test_a_hidden_launcher_is_ignored(monkeypatch):
    """As under hidepid=1, if it belongs to another user."""
    ours, really = os.getpid(), os.open

    def guarded(path, *args, **kwargs):
        if str(path).startswith("/proc/") and f"/{ours}/" not in str(path):
            raise PermissionError(1, "Operation not permitted", path)
        return really(path, *args, **kwargs)

    live_rank = rank(0, outcome="")
    live_rank.header = replace(live_rank.header, process=Process.current())
    tracker = ElasticRestartTracker()
    monkeypatch.setattr(os, "open", guarded)
    tracker.add_rank(live_rank)

    assert Process.current().parent() is None
    assert not Process(os.getppid(), 1).is_alive()
    assert tracker.workers == {}


LAUNCHER = """
import os, subprocess, sys
environ = {**os.environ, "TORCHELASTIC_RESTART_COUNT": "3"}
waits = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
subprocess.run([sys.executable, "-c", waits], env=environ)
"""


@pytest.mark.parametrize(("nodes", "restarts"), [("1:2", 3), ("2", None)])
def test_the_restart_count_is_read_from_the_environment_of_the_rank(nodes, restarts):
    arguments = [sys.executable, "-c", LAUNCHER, "--nnodes", nodes]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        live_rank = rank(0, outcome="")
        worker = Process.from_pid(int(launcher.stdout.readline()))
        live_rank.header = replace(live_rank.header, process=worker)
        tracker = ElasticRestartTracker()
        tracker.add_rank(live_rank)
        launcher.stdin.close()
        launcher.wait(240)

    known = tracker.workers.get((0, 0))
    assert (known and known.restart_count) == restarts
    assert known is None or known.launcher.pid == launcher.pid
