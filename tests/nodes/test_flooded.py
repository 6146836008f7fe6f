"""Who reaches the port of the head fills neither its memory nor its descriptors."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil
import pytest
from agent_results import AgentResults, assert_steps
from floods import FLOODS, running_flood
from hosts import TIMEOUT_SECONDS
from jobs import Job
from support.rank_processes import until

MAX_HEAD_MIB = 400
RETURNED_MIB = 60
"""Memory that may remain after a flood: allocators keep a part of what was freed."""


def head_memory_mib(host):
    """Resident memory of the agent and the process of its store, in MiB."""
    total = 0
    for agent in host.agents():
        for process in (agent, *agent.children(recursive=True)):
            with suppress(psutil.Error):
                total += process.memory_info().rss >> 20
    return total


def notified(head):
    return [(each.incident.key.detector, each.reason.value) for each in head.notifications()]


@pytest.mark.fault("X46")
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.full] * (k != "large_keys")) for k in FLOODS]
)
def test_a_flood_of_the_store_is_limited_and_notified_once(loopback, add_receiver, tmp_path, kind):
    hosts = loopback.add_hosts(2)
    receiver = add_receiver(hosts[0])
    job = Job(tmp_path / "job", hosts, 60, barriers=[20, 40, 60]).start()
    head = AgentResults(hosts[0])
    job.wait_at(20)
    head.wait_for_steps(20)
    before, highest = head_memory_mib(hosts[0]), 0
    address = AgentResults(hosts[1]).wait_until_connected().state()["cluster"]["head"]
    host, port = address.rsplit(":", 1)
    with running_flood(kind, (host, int(port))):
        job.release(20)
        job.wait_at(40)
        until(lambda: notified(head), TIMEOUT_SECONDS, head.log)
        end = time.monotonic() + 10.0
        while time.monotonic() < end:
            highest = max(highest, head_memory_mib(hosts[0]))
            time.sleep(0.05)
        print(kind, "before", before, "highest", highest)
    job.release(40)
    job.wait_at(60)
    head.wait_for_steps(60)
    print("after", head_memory_mib(hosts[0]), head.metrics().get("sentinel_head_connection_rejected_total"), head.log[-1500:])
    assert head_memory_mib(hosts[0]) < before + RETURNED_MIB
    job.release(60)
    assert job.exit_codes() == [0, 0]
    assert_steps(head.wait_until_ended().steps(), range(1, 61), job.all_ranks)
    assert notified(head)[0] == ("store_flooded", "opened")
    assert set(notified(head)[1:]) <= {("store_flooded", "resolved")}
    assert len(receiver.accepted) <= 2
    assert highest < MAX_HEAD_MIB
