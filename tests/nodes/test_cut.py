"""A cut of the network is one case, and the rank that ends a run is its headline."""

from __future__ import annotations

import signal
import time

import pytest
from agent_results import AgentResults
from hosts import TIMEOUT_SECONDS
from jobs import Job
from support.rank_processes import until

from sentinel.model.message import build_message

pytestmark = pytest.mark.nodes
CUT_SECONDS = 60.0


def start_ddp(hosts, path):
    """A DDP training on these hosts that has taken steps, and the results of its head."""
    more = {"kind": "torchrun", "script": "ddp_ranks.py", "step_seconds": 0.05}
    job = Job(path / "job", hosts, 1_000_000, **more).start()
    head = AgentResults(hosts[0])
    head.wait_for_steps(50)
    AgentResults(hosts[1]).wait_until_connected()
    return job, head


def rank_process(host, rank):
    """The process of that rank."""
    (process,) = [
        each
        for each in host.processes()
        if each.environ().get("RANK") == str(rank) and "agent" not in each.cmdline()
    ]
    return process


def summaries(results):
    return [
        (each.incident.key.detector, each.reason.value, each.incident.severity.value)
        for each in results.notifications()
    ]


def cut_link(job, head):
    """Cut the link of the second host for a minute."""
    host = job.hosts[1]
    host.cut()
    time.sleep(CUT_SECONDS)
    assert summaries(head) == [("node_lost", "opened", "critical")]
    host.restore()


@pytest.fixture
def stall_settings(cluster):
    """Two hosts that report a stall after 30 s."""
    hosts = cluster.add_hosts(2)
    for host in hosts:
        host.settings["SENTINEL_DETECTORS__RUN_STALLED__FLOOR"] = "30"
    return hosts


def start_and_cut(hosts, folder):
    """Start a training, cut its link for a minute, and wait until its ranks go on."""
    job, head = start_ddp(hosts, folder)
    cut_link(job, head)
    count = len(head.steps())
    until(lambda: len(head.steps()) > count + 50, TIMEOUT_SECONDS, "the ranks go on")
    return head


@pytest.mark.fault("A17")
def test_a_cut_of_a_minute_is_one_case(stall_settings, add_receiver, tmp_path):
    """TCP continues 42 s after the cut, for it doubles the time between two tries."""
    hosts = stall_settings
    add_receiver(hosts[0])
    head = start_and_cut(hosts, tmp_path)
    until(
        lambda: [each["state"] for each in head.incidents()] == ["resolved"],
        TIMEOUT_SECONDS,
        "the incident is resolved",
    )
    assert summaries(head)[0] == ("node_lost", "opened", "critical")
    assert {each[0] for each in summaries(head)} == {"node_lost"}


@pytest.mark.fault("A17")
def test_a_hang_after_a_cut_is_found(stall_settings, add_receiver, tmp_path):
    hosts = stall_settings
    add_receiver(hosts[0])
    head = start_and_cut(hosts, tmp_path)
    rank_process(hosts[1], 3).suspend()
    until(
        lambda: ("run_stalled", "opened", "critical") in summaries(head), TIMEOUT_SECONDS, head.log
    )
    found = [each.incident for each in head.notifications()]
    assert found[-1].finding.rank == 3


@pytest.mark.fault("A17")
def test_a_rank_that_is_suspended_during_a_cut_is_found(stall_settings, add_receiver, tmp_path):
    hosts = stall_settings
    add_receiver(hosts[0])
    _, head = start_ddp(hosts, tmp_path)
    hosts[1].cut()
    rank_process(hosts[0], 1).suspend()
    until(
        lambda: ("run_stalled", "opened", "critical") in summaries(head), TIMEOUT_SECONDS, head.log
    )
    found = {each.incident.key.detector: each.incident for each in head.notifications()}
    assert found["run_stalled"].finding.rank == 1
    assert "node_lost" in found


@pytest.mark.fault("A18")
def test_a_rank_that_is_killed_while_the_head_does_not_report_is_the_headline(
    loopback, add_receiver, tmp_path
):
    hosts = loopback.add_hosts(2)
    receiver = add_receiver(*hosts)
    job, head = start_ddp(hosts, tmp_path)
    deputy = AgentResults(hosts[1])
    # The deputy learns that it is one with an acknowledgement.
    count = len(head.steps())
    until(lambda: len(head.steps()) > count + 100, TIMEOUT_SECONDS, head.log)
    (agent,) = hosts[0].agents()
    agent.suspend()
    until(lambda: receiver.accepted, TIMEOUT_SECONDS, deputy.log)
    rank_process(hosts[1], 3).send_signal(signal.SIGKILL)
    until(lambda: len(receiver.accepted) > 1, TIMEOUT_SECONDS, deputy.log)
    headlines = [build_message(each, None).headline for each in deputy.notifications()]
    assert "Rank 3 was killed by SIGKILL" in headlines[-1]
    assert "Node down" not in headlines[-1]
    agent.resume()
    assert all(job.exit_codes())
