"""A healthy training on several nodes: the head evaluates all ranks and notifies nothing."""

import pytest
from agent_results import AgentResults, assert_steps
from hosts import TIMEOUT_SECONDS
from jobs import Job
from support.rank_processes import until

STEPS = 40


def assert_healthy(job, head, receiver):
    """Assert that the job succeeds, with exact steps and without incidents or notifications."""
    assert job.exit_codes() == [0] * len(job.hosts), [host.output for host in job.hosts]
    weighted = job.script == "plain_ranks.py"
    assert_steps(
        head.wait_until_ended().steps(), range(1, job.steps + 1), job.all_ranks, weighted=weighted
    )
    assert [(i["detector"], i["summary"]) for i in head.incidents()] == []
    assert head.notifications() == receiver.accepted == []


def wait_until_all_ended(hosts):
    until(
        lambda: not any(host.processes() for host in hosts),
        TIMEOUT_SECONDS,
        "all processes have ended",
    )


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("torchelastic", 2),
        pytest.param("slurm", 2, marks=pytest.mark.nodes),
        pytest.param("ray", 2, marks=pytest.mark.nodes),
        pytest.param("hostfile", 2, marks=pytest.mark.nodes),
        pytest.param("mpi", 2, marks=pytest.mark.nodes),
        pytest.param("pytorch", 2, marks=pytest.mark.nodes),
        pytest.param("torchelastic", 4, marks=pytest.mark.nodes),
    ],
)
def test_the_head_receives_every_step_of_every_rank_and_notifies_nothing(
    site, add_receiver, tmp_path, kind, count
):
    hosts = site.add_hosts(count)
    receiver = add_receiver(hosts[0])
    job = Job(tmp_path / "job", hosts, STEPS, kind=kind).start()
    assert_healthy(job, AgentResults(hosts[0]), receiver)
    for host in hosts[1:]:
        assert AgentResults(host).wait_until_ended().steps() == []
    wait_until_all_ended(hosts)


@pytest.mark.parametrize(
    ("kind", "script"),
    [
        ("torchrun", "ddp_ranks.py"),
        pytest.param("accelerate", "plain_ranks.py", marks=pytest.mark.nodes),
        pytest.param("deepspeed", "plain_ranks.py", marks=pytest.mark.nodes),
    ],
)
def test_a_real_launcher_of_two_nodes_is_one_run(site, add_receiver, tmp_path, kind, script):
    hosts = site.add_hosts(2)
    receiver = add_receiver(hosts[0])
    job = Job(tmp_path / "job", hosts, STEPS, kind=kind, script=script).start()
    assert_healthy(job, AgentResults(hosts[0]), receiver)
    wait_until_all_ended(hosts)


@pytest.mark.fault("T5")
def test_two_runs_on_the_same_hosts_are_separate(site, add_receiver, tmp_path):
    hosts = site.add_hosts(2)
    receiver = add_receiver(hosts[0])
    one = Job(tmp_path / "one", hosts, STEPS, name="one").start()
    two = Job(tmp_path / "two", hosts, STEPS + 5, name="two").start()
    until(lambda: len(hosts[0].runs()) == 2, TIMEOUT_SECONDS, "two agents on the first node")
    for job in (one, two):
        (run,) = [path for path in hosts[0].runs() if path.name.startswith(job.name)]
        assert_healthy(job, AgentResults(hosts[0], run), receiver)
    wait_until_all_ended(hosts)


@pytest.mark.fault("T5")
def test_a_run_at_the_port_of_a_lingering_one_is_separate(site, add_receiver, tmp_path):
    hosts = site.add_hosts(2)
    receiver = add_receiver(hosts[0])
    for host in hosts:
        host.settings["SENTINEL_LINGER_SECONDS"] = "3600"
    first = Job(tmp_path / "first", hosts, STEPS, name="first").start()
    assert first.exit_codes() == [0, 0]
    before = AgentResults(hosts[0])
    until(lambda: len(before.steps()) == STEPS, TIMEOUT_SECONDS, before.log)
    second = Job(tmp_path / "second", hosts, STEPS + 5, name="second", port=first.port).start()
    assert second.exit_codes() == [0, 0]
    until(lambda: len(hosts[0].runs()) == 2, TIMEOUT_SECONDS, "an agent of the second run")
    (run,) = set(hosts[0].runs()) - {before.run}
    after = AgentResults(hosts[0], run)
    until(lambda: len(after.steps()) == STEPS + 5, TIMEOUT_SECONDS, after.log)
    assert_steps(after.steps(), range(1, STEPS + 6), second.all_ranks)
    assert_steps(before.steps(), range(1, STEPS + 1), first.all_ranks)
    assert receiver.accepted == []


@pytest.mark.parametrize("monitored_by", ["under_run"], indirect=True)
def test_under_sentinel_run_the_run_is_over_when_it_ends(loopback, add_receiver, tmp_path):
    """The exit of a node's command is no rank of that node."""
    hosts = loopback.add_hosts(2)
    receiver = add_receiver(hosts[0])
    hosts[0].settings["SENTINEL_LINGER_SECONDS"] = "3600"
    job = Job(tmp_path / "job", hosts, STEPS).start()
    head = AgentResults(hosts[0])
    assert job.exit_codes() == [0, 0], [host.output for host in hosts]
    AgentResults(hosts[1]).wait_until_ended()
    until(lambda: head.state()["state"] == "finished", TIMEOUT_SECONDS, head.log)
    nodes = [(node["ranks"], node["state"]) for node in head.state()["cluster"]["nodes"]]
    assert nodes == [([0, 1], "ended"), ([2, 3], "ended")]
    assert_steps(head.steps(), range(1, STEPS + 1), job.all_ranks)
    assert head.incidents() == receiver.accepted == []


@pytest.mark.nodes
def test_a_node_with_another_learning_rate_from_the_first_step_is_found(
    site, add_receiver, tmp_path
):
    hosts = site.add_hosts(2)
    receiver = add_receiver(hosts[0])
    hosts[1].settings["RATE_FACTOR"] = "3"
    job = Job(tmp_path / "job", hosts, STEPS, kind="torchrun", script="ddp_ranks.py").start()
    assert job.exit_codes() == [0, 0], [host.output for host in hosts]
    (opened, *later) = AgentResults(hosts[0]).wait_until_ended().notifications()
    incident = opened.incident
    assert (incident.key.detector, incident.signal, incident.onset_step) == (
        "rank_desync",
        "learning_rate",
        1,
    )
    assert incident.finding.evidence["differing_ranks"] == "2-3"
    assert {each.reason.value for each in later} <= {"resolved"}
    assert len(receiver.accepted) == 1 + len(later)
    wait_until_all_ended(hosts)
