"""Actions of the ranks of several nodes: all of them at one step, or none."""

import json
import random
import time
from contextlib import closing

import pytest
from agent_results import AgentResults
from jobs import Job
from support.rank_processes import until

from sentinel.store import commands
from sentinel.store.commands import REQUEST_PREFIX, ActionRequest
from sentinel.store.database import connect

MANY_STEPS = 20_000


def acting_job(folder, hosts):
    """A started training of two ranks on each host, which takes the actions of a command."""
    script = "acting_ranks.py"
    return Job(folder / "job", hosts, MANY_STEPS, kind="torchrun", script=script).start()


def results(job):
    """For each rank, the steps at which it saved, and its last step."""
    paths = [job.folder / f"acted-{rank}.json" for rank in job.all_ranks]
    return [json.loads(path.read_text()) for path in paths]


@pytest.mark.parametrize("monitored_by", ["decorator"], indirect=True)
def test_all_ranks_of_two_nodes_save_and_stop_at_one_step(loopback, add_receiver, tmp_path):
    hosts = loopback.add_hosts(2)
    add_receiver(hosts[0])
    for host in hosts:
        host.settings |= {"SENTINEL_ACTIONS__ON_CRITICAL": "checkpoint,stop", "NAN_STEP": "60"}
    job = acting_job(tmp_path, hosts)
    assert job.exit_codes() == [0, 0], [host.output for host in hosts]
    first, *others = results(job)
    saves, last = first
    assert others == [first] * 3
    assert saves == [last]
    assert last < MANY_STEPS
    (critical,) = [
        each
        for each in AgentResults(hosts[0]).wait_until_ended().notifications()
        if "requested" in "".join(each.notes) and each.reason.value == "opened"
    ]
    assert f"A checkpoint and a stop were requested for step {last}." in critical.notes


@pytest.mark.fault("T18")
@pytest.mark.parametrize("monitored_by", ["decorator"], indirect=True)
def test_a_command_that_does_not_reach_one_node_is_taken_by_no_rank(loopback, tmp_path):
    hosts = loopback.add_hosts(2)
    job = acting_job(tmp_path, hosts)
    head = AgentResults(hosts[0])
    AgentResults(hosts[1]).wait_until_connected()
    head.wait_for_steps(20)
    (agent,) = hosts[1].agents()
    agent.suspend()
    assert request(head, "stop")[1] is None
    until(lambda: "stop" in head.state()["metadata"].get("on_critical", ""), 240, head.log)
    outcome = head.state()["metadata"]["on_critical"]
    assert "not every rank was ready to stop" in outcome
    agent.resume()
    (job.folder / "finish").touch()
    assert job.exit_codes() == [0, 0], [host.output for host in hosts]
    assert {tuple(saves) for saves, _ in results(job)} == {()}
    assert len({last for _, last in results(job)}) == 1


@pytest.mark.full
@pytest.mark.parametrize("monitored_by", ["decorator"], indirect=True)
@pytest.mark.parametrize("count", [20])
def test_each_checkpoint_is_saved_by_all_ranks_at_the_step_of_the_request(
    loopback, tmp_path, count
):
    hosts = loopback.add_hosts(2)
    job = acting_job(tmp_path, hosts)
    head = AgentResults(hosts[0])
    AgentResults(hosts[1]).wait_until_connected()
    head.wait_for_steps(20)
    planned = []
    for number in range(count):
        step, refusal = request(head, "checkpoint", number)
        assert refusal is None
        planned.append(step)
        until(lambda: head.state()["step"] > planned[-1], 240, head.log)
    (job.folder / "finish").touch()
    assert job.exit_codes() == [0, 0], [host.output for host in hosts]
    assert [saves for saves, _ in results(job)] == [planned] * 4


FAULTS = {
    "none": lambda agent: None,
    "kill": lambda agent: agent.kill(),
    "suspend": lambda agent: agent.suspend(),
}


@pytest.mark.fault("T18")
@pytest.mark.full
@pytest.mark.parametrize("monitored_by", ["decorator"], indirect=True)
@pytest.mark.parametrize("count", [40])
def test_with_agents_killed_and_suspended_no_rank_acts_alone(loopback, tmp_path, count):
    hosts = loopback.add_hosts(2)
    job = acting_job(tmp_path, hosts)
    head = AgentResults(hosts[0])
    AgentResults(hosts[1]).wait_until_connected()
    head.wait_for_steps(20)
    draw = random.Random(7)
    planned = []
    for number in range(count):
        until(lambda: head.state().get("step"), 240, head.log)
        step, _ = request(head, "checkpoint", number)
        planned.append(step)
        time.sleep(draw.uniform(0, 6))
        agents = draw.choice(hosts).agents()
        for agent in agents:
            FAULTS[draw.choice([*FAULTS])](agent)
        time.sleep(draw.uniform(3, 9))
        for agent in agents:
            if agent.is_running():
                agent.resume()
    (job.folder / "finish").touch()
    assert job.exit_codes() == [0, 0], [host.output for host in hosts]
    first, *others = results(job)
    assert others == [first] * 3
    assert {*first[0]} <= {*planned}
    # Else nothing was tried.
    assert first[0]


def request(agent, action, number=1):
    """Request an action from that agent; returns the step that it is due at, and the refusal."""
    with closing(connect(agent.database)) as connection:
        wanted = ActionRequest(f"{REQUEST_PREFIX}{number}", frozenset({action}))
        commands.store_request(connection, wanted)
        until(lambda: any(commands.outcome(connection, wanted.name)), 60, agent.log)
        return commands.outcome(connection, wanted.name)
