"""kill -9 of one rank of a DDP run on two nodes under torchrun: that rank alone is named, once."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest
from agent_results import AgentResults
from hosts import TIMEOUT_SECONDS
from jobs import Job
from support.rank_processes import until

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("RANK_KILLS", "4"))
QUIET_SECONDS = 8.0
"""How long no other notification may follow."""


def kill_rank(job, rank):
    """Kill -9 that rank of a job."""
    host = job.hosts[rank // job.ranks]
    (victim,) = [
        each
        for each in host.processes()
        if each.environ().get("RANK") == str(rank) and "agent" not in each.cmdline()
    ]
    os.kill(victim.pid, signal.SIGKILL)
    return time.time()


def run_with_kill(hosts, add_receiver, folder, rank, kind="torchrun"):
    """Notifications at the head after that rank was killed, and the seconds to the first."""
    receiver = add_receiver(hosts[0])
    hosts[0].settings["SENTINEL_LINGER_SECONDS"] = hosts[1].settings["SENTINEL_LINGER_SECONDS"] = (
        "5"
    )
    job = Job(folder / "job", hosts, 1_000_000, kind=kind, script="ddp_ranks.py").start()
    head = AgentResults(hosts[0])
    until(lambda: is_complete(head), TIMEOUT_SECONDS, "all ranks are monitored")
    until(lambda: len(head.steps()) > 40, TIMEOUT_SECONDS, head.log)
    killed_at = kill_rank(job, rank)
    until(lambda: receiver.accepted, TIMEOUT_SECONDS, head.log)
    delay = time.time() - killed_at
    time.sleep(QUIET_SECONDS)
    return [
        (each.incident.key.detector, each.reason.value, each.incident.finding.summary)
        for each in head.notifications()
    ], delay


def is_complete(head):
    """Whether the other node is connected, or its ranks are gathered."""
    if "AGGREGATE" in head.host.settings:
        return any(r.attributes.get("collective", "").startswith("on") for r in head.records())
    return head.metrics().get("sentinel_nodes", {}).get(("up",)) == 2.0


@pytest.mark.parametrize("rank", [number % 4 for number in (3, 0, 2, 1) * KILLS][:KILLS])
def test_a_killed_rank_alone_is_named(loopback, add_receiver, tmp_path, rank):
    found, delay = run_with_kill(loopback.add_hosts(2), add_receiver, tmp_path, rank)

    print(f"rank {rank}: {delay:.2f} s {found}")
    assert [each[:2] for each in found] == [("run_died", "opened")], found
    assert re.match(rf"Rank {rank} was killed by SIGKILL at step \d+; ", found[0][2]), found


@pytest.mark.parametrize("monitored_by", ["decorator"], indirect=True)
@pytest.mark.parametrize("rank", [number % 4 for number in (3, 0, 2, 1) * KILLS][:KILLS])
def test_a_killed_rank_of_a_collective_alone_is_named(loopback, add_receiver, tmp_path, rank):
    hosts = loopback.add_hosts(2)
    for host in hosts:
        host.settings["AGGREGATE"] = "collective"
    found, delay = run_with_kill(hosts, add_receiver, tmp_path, rank)

    print(f"rank {rank}: {delay:.2f} s {found}")
    assert [each[:2] for each in found] == [("run_died", "opened")], found
    assert re.match(rf"Rank {rank} was killed (by SIGKILL )?at step \d+", found[0][2]), found
