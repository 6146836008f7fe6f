"""`sentinel status` of runs on several nodes."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from sentinel.agent.discovery import DiscoveredRun, query_agent, registration_files
from sentinel.agent.registration import AgentRegistration
from sentinel.cli.main import app
from sentinel.cli.status import _format_run, _to_dict
from sentinel.doctor.nodes import MAX_HEALTHY_NODES_LISTED
from sentinel.transport.paths import home_dir, run_dir

STATE = {"run": "two", "state": "running", "step": 41}


def node(number, state="up", **fields):
    ranks = [2 * number, 2 * number + 1]
    return {"host": f"gpu-{number}", "ranks": ranks, "state": state} | fields


def head(*nodes):
    return STATE | {"cluster": {"role": "head", "port": 14007, "nodes": [*nodes]}}


def follower(**fields):
    cluster = {"role": "follower", "head": "gpu-0:14007", "connected": True, "spooled_bytes": 0}
    return STATE | {"step": None, "cluster": cluster | fields}


def lines(state):
    return list(_format_run(_to_dict(DiscoveredRun("two", "http://here", state))))


def test_every_node_has_a_line_with_its_ranks():
    lost = node(1, "lost", silent_seconds=34.2, skew_seconds=-3600.0)

    assert lines(head(node(0), lost)) == [
        "two: running at step 41 (http://here)",
        "  node gpu-0: ranks 0-1, up",
        "  node gpu-1: ranks 2-3, lost, no heartbeat for 34 s, clock 1 h ahead",
    ]


def test_of_many_nodes_only_unhealthy_ones_have_a_line():
    many = [node(number) for number in range(MAX_HEALTHY_NODES_LISTED + 1)]

    assert lines(head(*many))[1:] == [f"  {len(many)} nodes: up, or ended without failure"]
    assert lines(head(*many, node(99, "lost", silent_seconds=12.0)))[1:] == [
        "  node gpu-99: ranks 198-199, lost, no heartbeat for 12 s",
        f"  {len(many)} other nodes: up, or ended without failure",
    ]


def test_a_run_on_one_node_has_no_node_lines():
    assert lines(STATE | {"cluster": {"role": "single"}}) == lines(STATE)
    assert lines(head(node(0))) == lines(STATE)


def test_a_follower_shows_the_head():
    assert lines(follower()) == ["two: running, processed by the head at gpu-0:14007 (http://here)"]


def test_a_disconnected_follower_shows_the_time_and_its_spool():
    lost_head = follower(connected=False, silent_seconds=600.0, spooled_bytes=2_500_000)
    no_head = follower(connected=False, head="", spooled_bytes=100)

    assert (
        "head at gpu-0:14007 not reached for 10 min, 2.4 MiB waiting to be sent"
        in lines(lost_head)[0]
    )
    assert "head not reached yet, 100 bytes waiting to be sent" in lines(no_head)[0]


def test_an_isolated_node_shows_that_it_reached_no_head():
    metadata = {"world_size": 4.0, "local_world_size": 2.0}
    (first, *_) = lines(STATE | {"cluster": {"role": "single"}, "metadata": metadata})

    assert "at step 41, no head reached: only this node's ranks are processed" in first


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\nb", "\u202eevil"])
def test_unprintable_characters_in_node_names_are_escaped(text):
    output = [*lines(head(node(0), node(1, host=text))), *lines(follower(head=text))]

    assert "".join(output).isprintable()


def test_json_has_the_whole_cluster_status(monkeypatch):
    state = head(node(0), node(1))
    monkeypatch.setattr("sentinel.agent.discovery.registration_files", lambda: [home_dir()])
    monkeypatch.setattr(
        "sentinel.agent.discovery.query_agent", lambda *_: DiscoveredRun("two", "u", state)
    )

    done = CliRunner().invoke(app, ["status", "--json"])

    assert json.loads(done.stdout)["cluster"] == state["cluster"]


def test_an_agent_on_another_node_is_not_reported_as_stopped(monkeypatch):
    """Nodes may share a home directory, but 127.0.0.1 is another host on each."""
    registration = AgentRegistration("two", home_dir() / "targets")
    registration.acquire()
    registration.set_directory(run_dir("two"))
    registration.register("127.0.0.1", 9)
    try:
        (path,) = registration_files()
        assert "does not answer" in query_agent(path).problem
        own_node = os.uname()
        other_node = type(own_node)((own_node.sysname, "gpu-b", *own_node[2:]))
        monkeypatch.setattr("sentinel.agent.discovery.os.uname", lambda: other_node)
        found = query_agent(path)
    finally:
        registration.release()

    assert found.problem == f"the agent is on node {own_node.nodename}"
    assert own_node.nodename in found.remedy


def test_ranks_that_have_sent_nothing_are_named():
    state = head(node(0)) | {"metadata": {"world_size": 4.0}}

    assert lines(state)[2:] == [
        "  node gpu-0: ranks 0-1, up",
        "  no data from 2 ranks (2-3): run sentinel doctor on their nodes to see why",
    ]


def test_refused_messages_are_shown_with_the_remedy():
    state = head(node(0), node(1)) | {"refused": {"token": 2.0}}

    assert lines(state)[-1].startswith("  2 messages rejected: token: set the same [cluster] token")


def test_records_that_arrived_too_late_are_shown():
    (problem,) = lines(head(node(0), node(1)) | {"late_records": 12.0})[3:]

    assert problem.startswith("  12 records arrived too late: their steps are evaluated without")


def test_a_follower_shows_what_the_head_judges():
    cases = [{"severity": "critical", "text": "a node is down: Node gpu-1 has not reported"}]
    judged = follower(report={"state": "stalled", "step": 43, "cases": cases})

    assert lines(judged)[1:] == [
        "  at the head: stalled at step 43",
        "    critical: a node is down: Node gpu-1 has not reported",
    ]


def test_a_follower_without_a_connection_shows_the_error_and_no_old_report():
    error = "The message is signed with another token."
    lost = follower(connected=False, error=error, report={"state": "running", "step": 4})

    (_, problem) = lines(lost | {"cluster": lost["cluster"] | {"silent_seconds": 60.0}})
    assert "signed with another token" in problem
    assert "set the same [cluster] token" in problem
