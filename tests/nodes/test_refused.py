"""What an agent does not take from others: refused, counted and shown, and nobody else suffers."""

import json
import socket

import pytest
from agent_results import Judged, expect
from hosts import PATIENCE
from intruders import AN_HOUR, FAR_BEATS, Insider, met, throw, word
from jobs import Job, free_port
from support.rank_processes import until

from sentinel.cluster.endpoints import SLOT_COUNTER_KEY
from sentinel.cluster.server import MAX_MESSAGE_BYTES

STEPS = 40


def refused(head):
    """How much was refused, by reason."""
    found = head.metrics().get("sentinel_head_connection_rejected_total", {})
    return {reason: count for (reason,), count in found.items() if count}


def doctor(host):
    """What it says must be mended on that node, or is to be known, of the runs there."""
    lines = host.told("-m", "sentinel", "doctor", "--quick", "--json").splitlines()
    found = map(json.loads, lines)
    return [f"{each['message']} {each['remedy']}" for each in found if each["grade"] != "ok"]


def says(host, word):
    return any(word in line for line in doctor(host))


def all_left(hosts):
    until(lambda: not any(host.processes() for host in hosts), PATIENCE, "all have left")


def half_way(site, people, path):
    """A run of two nodes that stands at half of its steps, its head, and who is told of it."""
    hosts = site.of(2)
    told = people(hosts[0])
    job = Job(path / "job", hosts, 2 * STEPS, gates=[STEPS, 2 * STEPS]).start()
    head = Judged(hosts[0])
    job.at(STEPS)
    head.heard(STEPS)
    return job, head, told


@pytest.mark.nodes
def test_a_wrong_token_a_wrong_head_and_none_at_all_cost_nobody_else_anything(
    site, people, tmp_path
):
    hosts = site.of(4)
    told = people(hosts[0])
    _, other, misled, lost = hosts
    for host in hosts:
        host.settings["SENTINEL_CLUSTER__TOKEN"] = "one" if host is not other else "another"
    server = misled.within(lambda: socket.create_server((misled.address, 0)))
    closed = free_port()
    misled.settings["SENTINEL_CLUSTER__HEAD"] = f"{misled.address}:{server.getsockname()[1]}"
    lost.settings["SENTINEL_CLUSTER__HEAD"] = f"{lost.address}:{closed}"
    with server:
        job = Job(tmp_path / "job", hosts, STEPS, gates=[STEPS], ranks=1).start()
        job.at(STEPS)
        head = Judged(hosts[0])
        until(lambda: refused(head).get("token"), PATIENCE, "the other token is counted")
        # Who answers nothing is given up only after a while.
        wanted = ((other, "token"), (misled, str(server.getsockname()[1])), (lost, str(closed)))
        for host, word in wanted:
            until(lambda host=host, word=word: says(host, word), PATIENCE, f"{word} by the doctor")
        job.open(STEPS)
        assert job.codes() == [0, 0, 0, 0]
    expect(head.over().steps(), range(1, STEPS + 1), [0])
    assert told.accepted == []
    all_left(hosts)


@pytest.mark.nodes
def test_what_strangers_write_into_the_store_of_a_run_is_refused_counted_and_shown(
    site, people, tmp_path
):
    """Garbage, another version, another token, too much and too many: the run goes on."""
    job, head, told = half_way(site, people, tmp_path)
    board, _ = met(job, job.hosts[1])
    throw(board, range(1, board.increment(SLOT_COUNTER_KEY) + 1))
    _refuses(job.hosts[0], head, {"token", "version", "damaged", "too_large", "too_many"})
    before = refused(head)["damaged"]
    board.write({SLOT_COUNTER_KEY: b"no number"})
    until(lambda: refused(head)["damaged"] > before, PATIENCE, "it counts on")
    _unharmed(job, head, told)


@pytest.mark.nodes
def test_a_node_that_says_what_none_of_ours_would_is_refused_counted_and_shown(
    site, people, tmp_path
):
    """It has the token: repeats, words from the future, nonsense, and more than is allowed."""
    job, head, told = half_way(site, people, tmp_path)
    insider = Insider(*met(job, job.hosts[1]))
    insider.enter()
    parcel = insider.parcel(
        word(1), word(1), word(2, later=AN_HOUR), word(3, beat=FAR_BEATS), word(4)
    )
    insider.leave(parcel)
    wanted = {"repeated": 1, "future": 2}.items()
    until(lambda: wanted <= refused(head).items(), PATIENCE, "each is counted")
    insider.leave(parcel)
    for message in (b"nonsense", bytes(MAX_MESSAGE_BYTES + 1024)):
        insider.enter()
        insider.leave(message)
    _refuses(job.hosts[0], head, {"repeated", "future", "damaged", "too_large"})
    assert refused(head)["repeated"] == 2
    _unharmed(job, head, told)


def _refuses(host, head, reasons):
    until(lambda: reasons <= refused(head).keys(), PATIENCE, "each is counted by its reason")
    for reason in reasons:
        assert says(host, f"rejected: {reason}"), doctor(host)


def _unharmed(job, head, told):
    """The run goes on, is heard to its end, in full, and nobody is woken."""
    job.open(STEPS)
    job.redirect_to(job.steps)
    head.heard(job.steps)
    job.open(job.steps)
    assert job.codes() == [0, 0]
    expect(head.run_finished().steps(), range(1, job.steps + 1), job.world)
    assert head.pages() == [] == told.accepted
    all_left(job.hosts)
