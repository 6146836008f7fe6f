"""Nodes, links and agents that fail while a training goes on: told once, or healed, or both."""

import signal
import time

import pytest
from agent_results import Judged, expect
from hosts import PATIENCE
from jobs import Job, free_port
from support.rank_processes import until
from tcp_proxy import Cable

NODE_LOST_SECONDS = 15.0


def names(pages):
    return [(page.incident.key.detector, page.reason.value) for page in pages]


def late(head):
    """Records that came when their step had been judged without them."""
    return head.metrics().get("sentinel_dropped_records_total", {}).get(("late",), 0.0)


def all_left(hosts):
    until(lambda: not any(host.processes() for host in hosts), PATIENCE, "all have left")


def test_a_node_that_dies_is_told_as_such_once_and_the_rest_is_judged_on(site, people, tmp_path):
    hosts = site.of(3)
    told = people(hosts[0])
    job = Job(tmp_path / "job", hosts, 60, gates=[20, 60]).start()
    head = Judged(hosts[0])
    job.at(20)
    head.heard(20)
    killed = time.time()
    hosts[2].kill()
    until(head.pages, PATIENCE, head.log)
    (page,) = head.pages()
    assert page.incident.key.detector == "node_lost"
    assert 0.0 < page.incident.opened_time - killed <= NODE_LOST_SECONDS
    left = [*job.of(hosts[0]), *job.of(hosts[1])]
    job.open(20)
    job.at(60, left)
    steps = head.heard(60)
    job.open(60)
    assert job.codes() == [0, 0, -signal.SIGKILL]
    expect(steps[:20], range(1, 21), job.world)
    expect(steps[20:], range(21, 61), left, missing="4,5")
    assert [name for name, _ in names(head.pages())] == ["node_lost"]
    assert len(told.accepted) == 1


def test_a_node_that_dies_and_takes_the_others_along_is_one_page(loopback, people, tmp_path):
    """In DDP the ranks of the others raise at once, which is no matter of its own."""
    hosts = loopback.of(2)
    told = people(hosts[0])
    # They are looked at for as long as it takes to give the lost ones up, and longer.
    hosts[0].settings["SENTINEL_LINGER_SECONDS"] = "5"
    job = Job(tmp_path / "job", hosts, 60, gates=[20, 60], script="ddp_ranks.py").start()
    head = Judged(hosts[0])
    job.at(20)
    # The last step is told of when the next begins.
    head.heard(10)
    killed = time.time()
    hosts[1].kill()
    job.open(20)
    assert job.launchers[hosts[0]].wait(PATIENCE) != 0
    until(head.pages, PATIENCE, head.log)
    head.over()
    (page,) = head.pages()
    assert (page.incident.key.detector, page.diagnosis.cause) == ("node_lost", "node_down")
    assert page.incident.finding.evidence["ranks"] == "2-3"
    assert "raised" in page.incident.finding.evidence["first_to_fall"]
    assert page.incident.opened_time > killed
    assert len(told.accepted) == 1


@pytest.mark.nodes
def test_where_the_heads_node_takes_the_others_along_its_deputy_tells_of_both(
    loopback, people, tmp_path
):
    hosts = loopback.of(2)
    told = people(hosts[1])
    job = Job(tmp_path / "job", hosts, 60, gates=[20, 60], script="ddp_ranks.py").start()
    head, deputy = Judged(hosts[0]), Judged(hosts[1])
    job.at(20)
    head.heard(10)
    until(lambda: deputy.metrics().get("sentinel_head_connection_up"), PATIENCE, deputy.log)
    hosts[0].kill()
    job.open(20)
    assert job.launchers[hosts[1]].wait(PATIENCE) != 0
    until(lambda: told.accepted, PATIENCE, deputy.log)
    (page,) = deputy.pages()
    assert page.incident.key.detector == "node_lost"
    assert "raised" in page.incident.finding.evidence["first_to_fall"]
    deputy.over()
    assert len(told.accepted) == 1


# Its successor has ten seconds, most of which a busy machine takes to load torch.
@pytest.mark.nodes
def test_an_agent_that_is_killed_is_started_again_and_nothing_is_lost_or_told(
    site, people, tmp_path
):
    hosts = site.of(2)
    told = people(hosts[0])
    # An agent is looked after by the steps of its ranks, twice a second.
    job = Job(tmp_path / "job", hosts, 100, every=0.05, gates=[20, 60, 100]).start()
    head = Judged(hosts[0])
    for gate, host in ((20, hosts[0]), (60, hosts[1])):
        job.at(gate)
        head.heard(gate)
        job.open(gate)
        host.kill("agent")
    job.at(100)
    head.heard(100)
    job.open(100)
    assert job.codes() == [0, 0]
    expect(head.over().steps(), range(1, 101), job.world)
    assert names(head.pages()) == []
    assert told.accepted == []
    all_left(hosts)


@pytest.mark.nodes
@pytest.mark.parametrize("seconds", [3.0, 7.0, 25.0])
def test_what_was_said_behind_a_cut_link_is_heard_once_it_is_healed(
    cluster, people, tmp_path, seconds
):
    """Or, where the node was lost for so long that the others were judged without it, counted."""
    hosts = cluster.of(2)
    told = people(hosts[0])
    job = Job(tmp_path / "job", hosts, 60, gates=[20, 40, 60]).start()
    head = Judged(hosts[0])
    job.at(20)
    head.heard(20)
    hosts[1].cut()
    cut = time.monotonic()
    job.open(20)
    job.at(40)
    until(lambda: time.monotonic() - cut >= seconds, PATIENCE, "time has passed")
    hosts[1].heal()
    job.open(40)
    job.at(60)
    steps = head.heard(60)
    apart = sum(record.spread["loss"].count == 2 for record in steps)
    until(lambda: late(head) == 2 * apart, PATIENCE, f"{apart} steps of two ranks are counted")
    job.open(60)
    assert job.codes() == [0, 0]
    was_lost = seconds > NODE_LOST_SECONDS
    expect(steps[:20], range(1, 21), job.world)
    if not was_lost:
        expect(steps[20:], range(21, 61), job.world)
    head.over()
    pages = names(head.pages())
    assert pages[:1] == [("node_lost", "opened")] * was_lost
    assert set(pages[1:]) <= {("node_lost", "resolved")}
    assert len(told.accepted) == len(pages) <= 2
    all_left(hosts)


@pytest.mark.nodes
def test_what_was_said_while_the_head_could_not_be_reached_is_heard_later(
    loopback, people, tmp_path
):
    hosts = loopback.of(2)
    told = people(hosts[0])
    port = free_port()
    with Cable(("127.0.0.1", port)) as cable:
        for host, there in zip(hosts, (port, cable.port), strict=True):
            host.settings["SENTINEL_CLUSTER__HEAD"] = f"127.0.0.1:{there}"
        job = Job(tmp_path / "job", hosts, 60, gates=[20, 40]).start()
        head = Judged(hosts[0])
        job.at(20)
        head.heard(20)
        cable.cut()
        job.open(20)
        job.at(40)
        cable.heal()
        job.open(40)
        assert job.codes() == [0, 0]
        expect(head.over().steps(), range(1, 61), job.world)
        Judged(hosts[1]).over()
    assert names(head.pages()) == [] == told.accepted
    all_left(hosts)


@pytest.mark.nodes
def test_a_node_without_sentinel_is_told_of_and_the_others_are_judged(site, people, tmp_path):
    hosts = site.of(2)
    told = people(hosts[0])
    job = Job(tmp_path / "job", hosts, 40, gates=[30], unwatched=hosts[1:]).start()
    head = Judged(hosts[0])
    job.at(30)
    head.heard(30)
    job.open(30)
    assert job.codes() == [0, 0]
    expect(head.over().steps(), range(1, 41), job.of(hosts[0]))
    assert names(head.pages()) == [] == told.accepted
    all_left(hosts)


def test_clocks_an_hour_apart_change_nothing(site, people, tmp_path):
    hosts = site.of(2)
    told = people(hosts[0])
    hosts[1].shift_clock(3600.0)
    began = time.time()
    job = Job(tmp_path / "job", hosts, 40, gates=[30]).start()
    head = Judged(hosts[0])
    job.at(30)
    heard = head.heard(30)
    job.open(30)
    assert job.codes() == [0, 0]
    expect(head.over().steps(), range(1, 41), job.world)
    assert all(began <= record.time <= time.time() for record in heard)
    assert names(head.pages()) == [] == told.accepted
    all_left(hosts)
