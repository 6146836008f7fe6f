"""An elastic torchrun that restarts its ranks after a failure, by its restart count."""

from __future__ import annotations

import os
import signal

import pytest
from agent_results import AgentResults
from hosts import TIMEOUT_SECONDS
from jobs import Job
from support.rank_processes import until


@pytest.mark.fault("T4")
@pytest.mark.nodes
def test_a_killed_rank_that_torchrun_restarts_is_notified(loopback, add_receiver, tmp_path):
    """Nodes may join this job, but none does: the end of its ranks was a failure."""
    hosts = loopback.add_hosts(2)
    receiver = add_receiver(hosts[0])
    job = Job(tmp_path / "job", hosts, 200, barriers=[20, 200], kind="elastic")
    job.start_on(hosts[0])
    head = AgentResults(hosts[0])
    job.wait_at(20, [0, 1])
    head.wait_for_steps(15)
    (victim,) = [each for each in hosts[0].processes() if each.environ().get("RANK") == "1"]
    os.kill(victim.pid, signal.SIGKILL)
    until(head.notifications, TIMEOUT_SECONDS, head.log)
    job.release(20)
    job.wait_at(200, [0, 1])
    job.release(200)
    assert job.launchers[hosts[0]].wait(TIMEOUT_SECONDS) == 0, hosts[0].output
    head.wait_until_ended()

    (opened, *later) = head.notifications()
    assert (opened.incident.key.detector, opened.reason.value) == ("run_died", "opened")
    assert {notification.reason.value for notification in later} <= {"resolved"}
    assert len(receiver.accepted) == len(head.notifications())
