"""Status of runs on several nodes: the nodes and how they are, and where a run is judged."""

from __future__ import annotations

import json
import os

import pytest
from typer.testing import CliRunner

from sentinel.agent.discovery import DiscoveredRun, query_agent, registration_files
from sentinel.agent.registration import AgentRegistration
from sentinel.cli.main import app
from sentinel.cli.status import _format_run, _to_dict
from sentinel.doctor.node_status import MAX_HEALTHY_NODES_LISTED
from sentinel.transport.paths import home_dir, run_dir

STATE = {"run": "two", "state": "running", "step": 41}


def node(number, state="up", **more):
    ranks = [2 * number, 2 * number + 1]
    return {"host": f"gpu-{number}", "ranks": ranks, "state": state} | more


def head(*known):
    return STATE | {"cluster": {"role": "head", "port": 14007, "nodes": [*known]}}


def post(**more):
    cluster = {"role": "follower", "head": "gpu-0:14007", "connected": True, "spooled_bytes": 0}
    return STATE | {"step": None, "cluster": cluster | more}


def lines(state):
    return list(_format_run(_to_dict(DiscoveredRun("two", "http://here", state))))


def test_the_nodes_of_a_run_are_told_with_their_ranks():
    lost = node(1, "lost", silent_seconds=34.2, skew_seconds=-3600.0)

    assert lines(head(node(0), lost)) == [
        "two: running at step 41 (http://here)",
        "  node gpu-0: ranks 0-1, up",
        "  node gpu-1: ranks 2-3, lost, not heard for 34 s, its clock is 1 h ahead",
    ]


def test_of_many_nodes_only_those_are_told_that_are_not_well():
    many = [node(number) for number in range(MAX_HEALTHY_NODES_LISTED + 1)]

    assert lines(head(*many))[1:] == [f"  {len(many)} nodes are up, or have ended well"]
    assert lines(head(*many, node(99, "lost", silent_seconds=12.0)))[1:] == [
        "  node gpu-99: ranks 198-199, lost, not heard for 12 s",
        f"  {len(many)} others are up, or have ended well",
    ]


def test_a_run_on_one_node_is_told_as_ever():
    assert lines(STATE | {"cluster": {"role": "single"}}) == lines(STATE)
    assert lines(head(node(0))) == lines(STATE)


def test_a_node_that_judges_nothing_says_where_its_ranks_are_judged():
    assert lines(post()) == ["two: running, judged at gpu-0:14007 (http://here)"]


def test_a_node_whose_head_is_gone_says_for_how_long_and_what_waits():
    away = post(connected=False, silent_seconds=600.0, spooled_bytes=2_500_000)
    never = post(connected=False, head="", spooled_bytes=100)

    assert "gpu-0:14007, which has not been reached for 10 min; 2.5 MB wait" in lines(away)[0]
    assert "judged at another node, which has not been reached yet; 1 kB wait" in lines(never)[0]


def test_a_node_that_found_no_head_says_that_it_judges_alone():
    about = {"world_size": 4.0, "local_world_size": 2.0}
    (first, *_) = lines(STATE | {"cluster": {"role": "single"}, "metadata": about})

    assert "at step 41, judged here, for its own ranks alone" in first


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\nb", "\u202eevil"])
def test_no_name_of_a_node_moves_the_cursor(text):
    shown = [*lines(head(node(0), node(1, host=text))), *lines(post(head=text))]

    assert "".join(shown).isprintable()


def test_json_has_all_that_is_known_of_the_nodes(monkeypatch):
    state = head(node(0), node(1))
    monkeypatch.setattr("sentinel.agent.discovery.registration_files", lambda: [home_dir()])
    monkeypatch.setattr(
        "sentinel.agent.discovery.query_agent", lambda *_: DiscoveredRun("two", "u", state)
    )

    done = CliRunner().invoke(app, ["status", "--json"])

    assert json.loads(done.stdout)["cluster"] == state["cluster"]


def test_an_agent_of_another_node_with_the_same_home_is_not_taken_for_gone(monkeypatch):
    """Homes are shared among nodes: 127.0.0.1 of one is not that of the other."""
    presence = AgentRegistration("two", run_dir("two"), home_dir() / "targets")
    presence.acquire()
    presence.register("127.0.0.1", 9)
    try:
        (path,) = registration_files()
        assert "does not answer" in query_agent(path).problem
        here = os.uname()
        elsewhere = type(here)((here.sysname, "gpu-b", *here[2:]))
        monkeypatch.setattr("sentinel.agent.discovery.os.uname", lambda: elsewhere)
        told = query_agent(path)
    finally:
        presence.release()

    assert told.problem == f"its agent is on node {here.nodename}"
    assert here.nodename in told.remedy
