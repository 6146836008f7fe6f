"""What an agent does not take from others: refused, counted and shown, and nobody else suffers."""

import json
import socket

import pytest
from hosts import PATIENCE
from jobs import Job, free_port
from judged import Judged, expect
from ranks import until

STEPS = 40


def refused(head):
    """How much was refused, by reason."""
    found = head.metrics().get("sentinel_link_refused_total", {})
    return {reason: count for (reason,), count in found.items() if count}


def doctor(host):
    """What it says must be mended on that node, or is to be known, of the runs there."""
    lines = host.told("-m", "sentinel", "doctor", "--quick", "--json").splitlines()
    found = map(json.loads, lines)
    return [f"{each['says']} {each['remedy']}" for each in found if each["grade"] != "ok"]


def says(host, word):
    return any(word in line for line in doctor(host))


def all_left(hosts):
    until(lambda: not any(host.processes() for host in hosts), PATIENCE, "all have left")


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
    assert told.taken == []
    all_left(hosts)
