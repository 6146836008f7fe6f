"""After the end of a collective, the agent of each node continues."""

from __future__ import annotations

import json
import os
import signal

import pytest
from agent_results import AgentResults
from expected_values import mean
from hosts import TIMEOUT_SECONDS
from jobs import Job
from support.rank_processes import until

SHORT_TIMES = {
    "LEAD_SECONDS": 0.3,
    "POLL_INTERVAL_SECONDS": 0.02,
    "GATHER_TIMEOUT_SECONDS": 1.0,
    "MIN_STEPS_BEFORE_TIMEOUT": 20,
    "ANSWER_TIMEOUT_SECONDS": 2.0,
}
"""Shorter than those of a real training."""
STEPS, STOP_STEP, CONNECTED_STEP = 300, 100, 200


def create_job(loopback, folder, *, without=(), **constants):
    hosts = loopback.add_hosts(2)
    settings = {"constants": {**SHORT_TIMES, **constants}, "without": without}
    for host in hosts:
        host.settings["COLLECTIVE_PLAN"] = json.dumps(settings)
    barriers = [STOP_STEP, CONNECTED_STEP, STEPS]
    return hosts, Job(
        folder / "job", hosts, STEPS, barriers=barriers, script="collective_ranks_script.py"
    )


def has_reported(head, state):
    """Whether a state of the collective that starts like this was reported."""
    states = [record.attributes.get("collective", "") for record in head.records()]
    return any(each.startswith(state) for each in states)


def finish(job, head, receiver, ranks):
    """Run to the end: each step is evaluated once, with all ranks that arrived in time.

    On a busy machine records may be late, which is counted, until all agents are connected.
    """
    hosts = job.hosts
    job.wait_at(CONNECTED_STEP)
    until(
        lambda: AgentResults(hosts[1]).metrics().get("sentinel_head_connection_up"),
        TIMEOUT_SECONDS,
        "the follower is connected",
    )
    head.wait_for_steps(CONNECTED_STEP)
    job.release(CONNECTED_STEP)
    job.wait_at(STEPS)
    head.wait_for_steps(STEPS)
    job.release(STEPS)
    assert job.exit_codes() == [0, 0], [host.output for host in hosts]
    steps = head.wait_until_ended().steps()
    assert [record.step for record in steps] == [*range(1, STEPS + 1)]
    for record in steps:
        late = [int(rank) for rank in record.attributes.get("missing", "").split(",") if rank]
        present = [rank for rank in ranks if rank not in late]
        assert record.spread["loss"].count == len(present), record
        assert record.values["loss"] == mean(present, record.step), record
        assert record.step <= CONNECTED_STEP or present == ranks
    assert receiver.accepted == []


@pytest.mark.fault("T8")
@pytest.mark.nodes
def test_after_a_rank_is_stopped_each_node_has_an_agent(loopback, add_receiver, tmp_path):
    hosts, job = create_job(loopback, tmp_path)
    receiver = add_receiver(hosts[0])
    job.start()
    head = AgentResults(hosts[0])
    job.wait_at(STOP_STEP)
    until(lambda: has_reported(head, "on: "), TIMEOUT_SECONDS, head.log)
    assert not hosts[1].agents()
    stopped = int((job.folder / "pid-3").read_text())
    os.kill(stopped, signal.SIGSTOP)
    try:
        job.release(STOP_STEP)
        until(lambda: has_reported(head, "off: timed out"), TIMEOUT_SECONDS, head.log)
        until(hosts[1].agents, TIMEOUT_SECONDS, "the other node has an agent")
    finally:
        os.kill(stopped, signal.SIGCONT)
    finish(job, head, receiver, job.all_ranks)


@pytest.mark.nodes
def test_with_a_rank_without_sentinel_each_node_has_an_agent(loopback, add_receiver, tmp_path):
    hosts, job = create_job(loopback, tmp_path, without=[3], READY_TIMEOUT_SECONDS=2.0)
    receiver = add_receiver(hosts[0])
    job.start()
    head = AgentResults(hosts[0])
    job.wait_at(STOP_STEP)
    job.release(STOP_STEP)
    until(lambda: has_reported(head, "off: not ready: rank 3 without"), TIMEOUT_SECONDS, head.log)
    finish(job, head, receiver, job.all_ranks[:3])
