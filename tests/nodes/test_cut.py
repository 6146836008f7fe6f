"""One cut of the network is one case, and a hang that is none of its consequences another."""

from __future__ import annotations

import os
import signal
import time

import pytest
from agent_results import AgentResults
from hosts import TIMEOUT_SECONDS
from jobs import Job
from support.rank_processes import until

CUT_SECONDS = float(os.environ.get("CUT_SECONDS", "60"))


@pytest.mark.fault("A41")
@pytest.mark.nodes
def test_a_cut_of_a_minute_is_one_case(cluster, add_receiver, tmp_path):
    hosts = cluster.add_hosts(2)
    add_receiver(hosts[0])
    for host in hosts:
        host.settings["SENTINEL_DETECTORS__RUN_STALLED__FLOOR"] = "30"
        host.settings["SENTINEL_LINGER_SECONDS"] = "5"
    more = {"kind": "torchrun", "script": "ddp_ranks.py", "step_seconds": 0.1}
    job = Job(tmp_path / "job", hosts, 1_000_000, **more).start()
    head = AgentResults(hosts[0])
    head.wait_for_steps(50)
    AgentResults(hosts[1]).wait_until_connected()
    hosts[1].cut()
    cut = time.time()
    time.sleep(CUT_SECONDS)
    hosts[1].restore()
    healed = time.time()
    end = time.monotonic() + 90
    count = len(head.steps())
    while time.monotonic() < end:
        time.sleep(5)
        print(round(time.time() - healed), len(head.steps()) - count, [(n.incident.key.detector, n.reason.value, n.incident.severity.value, round(n.time - cut, 1), n.incident.finding.summary) for n in head.notifications()], flush=True)


@pytest.mark.fault("A42")
@pytest.mark.nodes
def test_a_rank_that_is_killed_while_the_head_does_not_report_is_the_headline(
    loopback, add_receiver, tmp_path
):
    hosts = loopback.add_hosts(2)
    receiver = add_receiver(*hosts)
    more = {"kind": "torchrun", "script": "ddp_ranks.py", "step_seconds": 0.05}
    job = Job(tmp_path / "job", hosts, 1_000_000, **more).start()
    head, deputy = AgentResults(hosts[0]), AgentResults(hosts[1])
    head.wait_for_steps(50)
    deputy.wait_until_connected()
    (agent,) = hosts[0].agents()
    time.sleep(3)
    agent.suspend()
    t = time.time()
    while not receiver.accepted and time.time() - t < 60:
        time.sleep(3)
        c = deputy.state()["cluster"]
        print(round(time.time() - t), {k: c[k] for k in c if k != "report"}, [(n.incident.key.detector, n.reason.value) for n in deputy.notifications()], flush=True)
    time.sleep(5.0)
    (process,) = [
        each for each in hosts[1].processes() if each.environ().get("RANK") == "3" and "agent" not in each.cmdline()
    ]
    process.send_signal(signal.SIGKILL)
    time.sleep(15)
    from sentinel.model.message import build_message
    for each in deputy.notifications():
        print(each.reason, each.incident.severity, each.diagnosis and each.diagnosis.cause, "|", build_message(each, None).headline)
    print([r.json["commonAnnotations"] for r in receiver.accepted])
    agent.resume()
    assert all(job.exit_codes())
