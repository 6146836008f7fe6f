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
FLOOD_SECONDS, LONG_FLOOD_SECONDS = 3.0, 20.0
"""The deputy waits for 15 s before it reports a head that no flood explains."""
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


def head_address(follower):
    """Host and port of the head, to which that node is connected."""
    state = AgentResults(follower).wait_until_connected().state()
    host, _, port = state["cluster"]["head"].rpartition(":")
    return host, int(port)


def notified(head):
    return [(each.incident.key.detector, each.reason.value) for each in head.notifications()]


@pytest.mark.fault("X18")
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.full] * (k != "large_keys")) for k in FLOODS]
)
def test_a_flood_of_the_store_is_limited_and_notified_once(loopback, add_receiver, tmp_path, kind):
    """No record is lost or evaluated twice, and the memory comes back."""
    hosts = loopback.add_hosts(2)
    receiver = add_receiver(*hosts)
    job = Job(tmp_path / "job", hosts, 60, barriers=[20, 40, 60]).start()
    head = AgentResults(hosts[0])
    job.wait_at(20)
    head.wait_for_steps(20)
    before, highest = head_memory_mib(hosts[0]), 0
    with running_flood(kind, head_address(hosts[1])):
        job.release(20)
        job.wait_at(40)
        if kind != "garbage":
            until(lambda: notified(head), TIMEOUT_SECONDS, head.log)
        seconds = FLOOD_SECONDS if kind == "large_keys" else LONG_FLOOD_SECONDS
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            highest = max(highest, head_memory_mib(hosts[0]))
            time.sleep(0.05)
    job.release(40)
    job.wait_at(60)
    head.wait_for_steps(60)
    after = head_memory_mib(hosts[0])
    print(f"{kind}: {before} MiB before, {highest} at most, {after} after; {head.log}")
    job.release(60)
    assert job.exit_codes() == [0, 0]
    assert_steps(head.wait_until_ended().steps(), range(1, 61), job.all_ranks)
    opened = [] if kind == "garbage" else [("store_flooded", "opened")]
    assert notified(head)[:1] == opened
    assert set(notified(head)[1:]) <= {("store_flooded", "resolved")}
    assert len(receiver.accepted) == len(notified(head)) <= 2
    assert highest < MAX_HEAD_MIB
    assert after < before + RETURNED_MIB


@pytest.mark.full
@pytest.mark.fault("X18")
def test_the_agent_of_a_flooded_head_that_is_killed_continues(loopback, add_receiver, tmp_path):
    """The process of its store ends with it, and the next agent uses the same port."""
    hosts = loopback.add_hosts(2)
    receiver = add_receiver(*hosts)
    # Ranks check their agent at their steps, twice a second.
    job = Job(tmp_path / "job", hosts, 200, step_seconds=0.05, barriers=[20, 160, 200]).start()
    head = AgentResults(hosts[0])
    job.wait_at(20)
    head.wait_for_steps(20)
    address = head_address(hosts[1])
    with running_flood("large_keys", address):
        job.release(20)
        until(lambda: notified(head), TIMEOUT_SECONDS, head.log)
        hosts[0].kill("agent")
        job.wait_at(160)
        until(hosts[0].agents, TIMEOUT_SECONDS, "another agent")
        time.sleep(FLOOD_SECONDS)
    job.release(160)
    job.wait_at(200)
    head.wait_for_steps(200)
    assert head_address(hosts[1]) == address
    job.release(200)
    assert job.exit_codes() == [0, 0]
    assert_steps(head.wait_until_ended().steps(), range(1, 201), job.all_ranks)
    assert notified(head)[0] == ("store_flooded", "opened")
    assert set(notified(head)[1:]) <= {("store_flooded", "resolved")}
    assert len(receiver.accepted) == len(notified(head))
