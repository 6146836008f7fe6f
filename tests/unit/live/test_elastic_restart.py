"""Regrouping: ranks that an elastic launcher ends and begins anew wake nobody; a failure does."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace

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

FELL = 1000.0


@dataclass(frozen=True)
class Launcher(Process):
    """A launcher that lives for as long as a test says."""

    lives: bool = True

    def is_alive(self):
        return self.lives


def rank(number, attempt=0, *, outcome="died", ended=FELL, moved=0.0, **stop):
    header = RingHeader(
        process=Process(1 + number, 1), identity=Identity("run", attempt, number), capacity=4096,
        created_at=0.0, position=0, sequence=0, last_step=9, last_step_index=9, last_time=0.0,
        outcome="running", backward_step_index=0, overhead_ns=0, errors=0, drop_counts=(),
    )  # fmt: skip
    return LiveRank(
        None, None, RingCursor(), header, moved, outcome, ended if outcome else 0.0, stop
    )


GONE = [rank(0), rank(1, ended=FELL + 0.4)]


class Node:
    """Two ranks of an elastic launcher, and what is made of the ticks of their agent."""

    def __init__(self, lives=True):
        self.regrouping, self.died = ElasticRestartTracker(), RunDied()
        self.begin(0, 0, lives=lives)

    def begin(self, attempt, restarts, lives=True):
        for number in range(2):
            worker = ElasticWorker(Launcher(1, 1, lives), restarts)
            self.regrouping.workers[attempt, number] = worker

    def tick(self, ranks, after):
        now = FELL + after
        return self.regrouping.annotate_heartbeat(build_heartbeat("run", ranks, now), ranks, now)

    def told(self, ranks, first, last):
        """What is found at ticks half a second apart, with when."""
        found = []
        for half in range(int(first * 2), int(last * 2)):
            opinion = self.died.update(self.tick(ranks, half / 2))
            if isinstance(opinion, Finding):
                found.append((half / 2, opinion.summary))
        return found


@pytest.fixture
def node():
    return Node()


def back(attempt=1):
    return [rank(number, attempt, outcome="") for number in range(2)]


def test_nodes_that_come_or_leave_wake_nobody(node):
    assert node.told(GONE, 1, 60) == []
    assert node.regrouping.awaiting_restart
    node.begin(1, 0)

    assert node.told(back(), 60, 90) == []
    assert not node.regrouping.awaiting_restart


def test_a_failure_that_the_launcher_mends_is_told_once_the_next_ranks_are_there(node):
    assert node.told(GONE, 1, 40) == []
    node.begin(1, 1)
    found = node.told(back(), 40, 80)

    assert found[0][1] == "Ranks 0, 1 were killed at step 9 without an error message; 2 ranks still run."
    assert 40 <= found[0][0] <= found[-1][0] < 40 + REPORT_FAILURE_SECONDS


def test_ranks_that_do_not_come_back_are_told_of(node):
    found = node.told(GONE, 1, RESTART_WAIT_SECONDS + 10)

    assert RESTART_WAIT_SECONDS <= found[0][0] <= RESTART_WAIT_SECONDS + 3
    assert not node.regrouping.awaiting_restart


def test_once_the_launcher_is_gone_nobody_waits_for_it(node):
    assert node.told(GONE, 1, 5) == []
    node.begin(0, 0, lives=False)

    assert node.told(GONE, 5, 10)[0][0] == 5.0


def test_an_agent_that_is_ended_meanwhile_waits_no_longer(node):
    assert node.told(GONE, 1, 5) == []
    node.regrouping.is_shutting_down = True

    assert "elastic_restart" not in node.tick(GONE, 5).attributes


def test_a_rank_that_takes_long_to_leave_wakes_nobody(node):
    leaving = [rank(0), rank(1, outcome="")]
    assert node.told(leaving, 0, MAX_EXIT_SPREAD_SECONDS - 1) == []
    slow = [rank(0), rank(1, ended=FELL + MAX_EXIT_SPREAD_SECONDS - 1)]
    assert node.told(slow, MAX_EXIT_SPREAD_SECONDS - 1, 60) == []
    node.begin(1, 0)

    assert node.told(back(), 60, 90) == []


def test_a_rank_that_never_leaves_was_not_told_to(node):
    found = node.told([rank(0), rank(1, outcome="")], 0, MAX_EXIT_SPREAD_SECONDS + 5)

    assert MAX_EXIT_SPREAD_SECONDS < found[0][0] <= MAX_EXIT_SPREAD_SECONDS + 1
    assert found[0][1] == "Rank 0 was killed at step 9 without an error message; 1 rank still runs."


def test_the_death_of_one_rank_of_a_launcher_that_then_ends_is_told_at_once(node):
    leaving = [rank(0), rank(1, outcome="")]
    assert node.told(leaving, 0, 3) == []
    node.begin(0, 0, lives=False)

    assert node.told(leaving, 3, 4)[0][0] == 3.0


@pytest.mark.parametrize(
    "ranks",
    [
        [rank(0), rank(1, outcome="", moved=FELL + 3.0)],
        [rank(0), rank(1, outcome="exception")],
        [rank(0), rank(1, ended=FELL + MAX_EXIT_SPREAD_SECONDS + 1.0)],
        [rank(0), rank(1, outcome="died", outcome_of="collective")],
    ],
    ids=["one goes on", "one raised", "one after the other", "one was told of"],
)
def test_what_does_not_fall_as_one_is_no_regrouping(node, ranks):
    after = max(rank.ended_at for rank in ranks) - FELL + 6.0
    assert "elastic_restart" not in node.tick(ranks, after).attributes


def test_of_a_launcher_that_is_not_elastic_nothing_is_waited_for():
    tick = ElasticRestartTracker().annotate_heartbeat(
        build_heartbeat("run", GONE, FELL + 1), GONE, FELL + 1
    )

    assert "elastic_restart" not in tick.attributes


def of(node_tick, *, age=0.0, host="a"):
    return NodeHeartbeat(node_tick, host, (0, 1), age, is_lost=False)


def test_of_several_nodes_all_that_fell_must_be_regrouping(node):
    gone = of(node.tick(GONE, 2.0))
    others = [rank(2, outcome="exception", exception="ValueError"), rank(3, outcome="")]
    raised = NodeHeartbeat(
        build_heartbeat("run", others, FELL + 2), "b", (2, 3), 0.0, is_lost=False
    )
    running = NodeHeartbeat(
        build_heartbeat("run", [rank(2, outcome="")], FELL + 2), "b", (2,), 0.0, is_lost=False
    )

    assert merge_heartbeats("run", [gone, running], FELL + 2).attributes["elastic_restart"] == "yes"
    assert "elastic_restart" not in merge_heartbeats("run", [gone, raised], FELL + 2).attributes


def test_a_node_that_is_heard_no_more_is_not_believed_for_ever(node):
    old = of(node.tick(GONE, 2.0), age=RESTART_TRUST_SECONDS + 1)

    assert "elastic_restart" not in merge_heartbeats("run", [old], FELL + 9).attributes


@pytest.mark.parametrize(
    ("words", "elastic"),
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
def test_a_launcher_is_elastic_if_its_nodes_may_come_and_leave(words, elastic):
    assert is_elastic(words) is elastic


def test_a_launcher_that_may_not_be_looked_at_is_none_of_ours(monkeypatch):
    """As under hidepid=1, where it is another user's."""
    ours, really = os.getpid(), os.open

    def guarded(path, *more, **named):
        if str(path).startswith("/proc/") and f"/{ours}/" not in str(path):
            raise PermissionError(1, "Operation not permitted", path)
        return really(path, *more, **named)

    seen = rank(0, outcome="")
    seen.header = replace(seen.header, process=Process.current())
    regrouping = ElasticRestartTracker()
    monkeypatch.setattr(os, "open", guarded)
    regrouping.add_rank(seen)

    assert Process.current().parent() is None
    assert not Process(os.getppid(), 1).is_alive()
    assert regrouping.workers == {}


LAUNCHER = """
import os, subprocess, sys
told = {**os.environ, "TORCHELASTIC_RESTART_COUNT": "3"}
waits = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
subprocess.run([sys.executable, "-c", waits], env=told)
"""


@pytest.mark.parametrize(("nodes", "restarts"), [("1:2", 3), ("2", None)])
def test_what_a_rank_was_told_by_its_launcher_is_read_from_outside(nodes, restarts):
    words = [sys.executable, "-c", LAUNCHER, "--nnodes", nodes]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as begun:
        seen = rank(0, outcome="")
        worker = Process.from_pid(int(begun.stdout.readline()))
        seen.header = replace(seen.header, process=worker)
        regrouping = ElasticRestartTracker()
        regrouping.add_rank(seen)
        begun.stdin.close()
        begun.wait(60.0)

    known = regrouping.workers.get((0, 0))
    assert (known and known.restart_count) == restarts
    assert known is None or known.launcher.pid == begun.pid
