"""A real elastic torchrun that begins its ranks anew: why it did is told apart by its own count."""

from __future__ import annotations

import os
import signal

import pytest
from agent_results import Judged
from hosts import PATIENCE
from jobs import Job
from support.rank_processes import until


@pytest.mark.nodes
def test_a_rank_that_is_killed_and_begun_again_is_told_of(loopback, people, tmp_path):
    """Nodes may join this job, and none does: that its ranks fell was a failure."""
    hosts = loopback.of(2)
    told = people(hosts[0])
    job = Job(tmp_path / "job", hosts, 200, gates=[20, 200], kind="elastic")
    job.begin(hosts[0])
    head = Judged(hosts[0])
    job.at(20, [0, 1])
    head.heard(15)
    (victim,) = [each for each in hosts[0].processes() if each.environ().get("RANK") == "1"]
    os.kill(victim.pid, signal.SIGKILL)
    until(head.pages, PATIENCE, head.log)
    job.open(20)
    job.at(200, [0, 1])
    job.open(200)
    assert job.launchers[hosts[0]].wait(PATIENCE) == 0, hosts[0].said
    head.over()

    (opened, *later) = head.pages()
    assert (opened.incident.key.detector, opened.reason.value) == ("run_died", "opened")
    assert {page.reason.value for page in later} <= {"resolved"}
    assert len(told.accepted) == len(head.pages())
