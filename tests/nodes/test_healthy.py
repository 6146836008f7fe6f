"""A healthy training on several nodes: the head judges all of its ranks, and wakes nobody."""

import pytest
from agent_results import Judged, expect
from hosts import PATIENCE
from jobs import Job
from support.rank_processes import until

STEPS = 40


def healthy(job, head, told):
    """The job ends well, and its head has heard everything and told nothing."""
    assert job.codes() == [0] * len(job.hosts), [host.said for host in job.hosts]
    weighted = job.script == "plain_ranks.py"
    expect(head.over().steps(), range(1, job.steps + 1), job.world, weighted=weighted)
    assert [(i["detector"], i["summary"]) for i in head.incidents()] == []
    assert head.pages() == told.accepted == []


def all_left(hosts):
    until(lambda: not any(host.processes() for host in hosts), PATIENCE, "all have left")


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
def test_the_head_hears_every_step_of_every_rank_and_wakes_nobody(
    site, people, tmp_path, kind, count
):
    hosts = site.of(count)
    told = people(hosts[0])
    job = Job(tmp_path / "job", hosts, STEPS, kind=kind).start()
    healthy(job, Judged(hosts[0]), told)
    for host in hosts[1:]:
        assert Judged(host).over().steps() == []
    all_left(hosts)


@pytest.mark.parametrize(
    ("kind", "script"),
    [
        ("torchrun", "ddp_ranks.py"),
        pytest.param("accelerate", "plain_ranks.py", marks=pytest.mark.nodes),
        pytest.param("deepspeed", "plain_ranks.py", marks=pytest.mark.nodes),
    ],
)
def test_a_real_launcher_of_two_nodes_is_heard_from_both(site, people, tmp_path, kind, script):
    hosts = site.of(2)
    told = people(hosts[0])
    job = Job(tmp_path / "job", hosts, STEPS, kind=kind, script=script).start()
    healthy(job, Judged(hosts[0]), told)
    all_left(hosts)


def test_two_runs_on_the_same_hosts_at_once_do_not_mix(site, people, tmp_path):
    hosts = site.of(2)
    told = people(hosts[0])
    one = Job(tmp_path / "one", hosts, STEPS, name="one").start()
    two = Job(tmp_path / "two", hosts, STEPS + 5, name="two").start()
    until(lambda: len(hosts[0].runs()) == 2, PATIENCE, "two agents on the first node")
    for job in (one, two):
        (run,) = [path for path in hosts[0].runs() if path.name.startswith(job.name)]
        healthy(job, Judged(hosts[0], run), told)
    all_left(hosts)


def test_a_run_at_the_port_of_one_whose_agents_still_linger_is_a_run_of_its_own(
    site, people, tmp_path
):
    hosts = site.of(2)
    told = people(hosts[0])
    for host in hosts:
        host.settings["SENTINEL_LINGER_SECONDS"] = "3600"
    first = Job(tmp_path / "first", hosts, STEPS, name="first").start()
    assert first.codes() == [0, 0]
    before = Judged(hosts[0])
    before.heard(STEPS)
    second = Job(tmp_path / "second", hosts, STEPS + 5, name="second", port=first.port).start()
    assert second.codes() == [0, 0]
    until(lambda: len(hosts[0].runs()) == 2, PATIENCE, "an agent of the second run")
    (run,) = set(hosts[0].runs()) - {before.run}
    expect(Judged(hosts[0], run).heard(STEPS + 5), range(1, STEPS + 6), second.world)
    expect(before.steps(), range(1, STEPS + 1), first.world)
    assert told.accepted == []
