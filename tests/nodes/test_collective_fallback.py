"""Ranks that gathered, and cannot any more: each node's own agent carries on from there."""

from __future__ import annotations

import json
import os
import signal

import pytest
from agent_results import Judged
from expected_values import mean
from hosts import PATIENCE
from jobs import Job
from support.rank_processes import until

SOON = {"AHEAD": 0.3, "PAUSE": 0.02, "PATIENCE": 1.0, "FEWEST_POLLS": 20, "ANSWER_SECONDS": 2.0}
"""Seconds: these tests need not be as patient as a training."""
STEPS, STOPS, LINKED = 300, 100, 200


def gathered(loopback, folder, *, without=(), **constants):
    hosts = loopback.of(2)
    told = {"constants": {**SOON, **constants}, "without": without}
    for host in hosts:
        host.settings["GATHERED"] = json.dumps(told)
    gates = [STOPS, LINKED, STEPS]
    return hosts, Job(folder / "job", hosts, STEPS, gates=gates, script="collective_ranks_script.py")


def said(head, word):
    """Whether that was told of the collective."""
    told = [record.attributes.get("collective", "") for record in head.all()]
    return any(fact.startswith(word) for fact in told)


def carried_on(job, head, told, ranks):
    """To the end: each step is told once, and is what all ranks said that were heard of it.

    A busy machine's agents may come late, as any of a node may; then that is told and counted, and
    is over once they are linked.
    """
    hosts = job.hosts
    job.at(LINKED)
    until(lambda: Judged(hosts[1]).metrics().get("sentinel_head_connection_up"), PATIENCE, "it is linked")
    head.heard(LINKED)
    job.open(LINKED)
    job.at(STEPS)
    head.heard(STEPS)
    job.open(STEPS)
    assert job.codes() == [0, 0], [host.said for host in hosts]
    steps = head.over().steps()
    assert [record.step for record in steps] == [*range(1, STEPS + 1)]
    for record in steps:
        late = [int(rank) for rank in record.attributes.get("missing", "").split(",") if rank]
        heard = [rank for rank in ranks if rank not in late]
        assert record.spread["loss"].count == len(heard), record
        assert record.values["loss"] == mean(heard, record.step), record
        assert record.step <= LINKED or heard == ranks
    assert told.accepted == []


@pytest.mark.nodes
def test_a_rank_that_is_stopped_ends_the_gathering_and_the_nodes_agents_carry_on(
    loopback, people, tmp_path
):
    hosts, job = gathered(loopback, tmp_path)
    told = people(hosts[0])
    job.start()
    head = Judged(hosts[0])
    job.at(STOPS)
    until(lambda: said(head, "on: "), PATIENCE, head.log)
    assert not hosts[1].agents()
    stopped = int((job.folder / "pid-3").read_text())
    os.kill(stopped, signal.SIGSTOP)
    try:
        job.open(STOPS)
        until(lambda: said(head, "off: timed out"), PATIENCE, head.log)
        until(hosts[1].agents, PATIENCE, "the other node has an agent of its own")
    finally:
        os.kill(stopped, signal.SIGCONT)
    carried_on(job, head, told, job.world)


@pytest.mark.nodes
def test_with_a_rank_without_sentinel_each_node_has_an_agent_and_all_others_are_heard(
    loopback, people, tmp_path
):
    hosts, job = gathered(loopback, tmp_path, without=[3], DEADLINE=2.0)
    told = people(hosts[0])
    job.start()
    head = Judged(hosts[0])
    job.at(STOPS)
    job.open(STOPS)
    until(lambda: said(head, "off: not ready: rank 3 without"), PATIENCE, head.log)
    carried_on(job, head, told, job.world[:3])
