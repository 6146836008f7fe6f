"""Presence: one agent per run, found by whoever looks, and gone when it is gone."""

from __future__ import annotations

import json
import os
import socket

import pytest

from sentinel.agent.registration import AgentRegistration, AlreadyServedError
from sentinel.model.record import WHOLE_RUN, Event, Record


@pytest.fixture
def presence(tmp_path):
    return AgentRegistration("demo-1", tmp_path, tmp_path / "targets")


def test_a_second_agent_is_told_who_serves_the_run(presence, tmp_path):
    presence.acquire()

    with pytest.raises(AlreadyServedError, match=str(os.getpid())):
        AgentRegistration("demo-1", tmp_path, tmp_path / "targets").acquire()


def test_tells_people_and_prometheus_where_it_listens(presence, tmp_path):
    assert presence.register("127.0.0.1", 13130) == "http://127.0.0.1:13130"

    told = json.loads((tmp_path / "agent.json").read_text())
    (target,) = json.loads((tmp_path / "targets" / "demo-1.json").read_text())
    assert (told["pid"], told["url"]) == (os.getpid(), "http://127.0.0.1:13130")
    assert target["targets"] == ["127.0.0.1:13130"]


def test_an_agent_that_listens_everywhere_is_reached_by_the_nodes_name(presence):
    assert presence.register("0.0.0.0", 1) == f"http://{socket.gethostname()}:1"


def test_an_agent_that_leaves_is_not_asked_any_more(presence, tmp_path):
    presence.register("127.0.0.1", 13130)
    presence.release()

    assert list((tmp_path / "targets").iterdir()) == []


def test_targets_of_killed_agents_are_taken_away_and_those_of_living_ones_are_not(tmp_path):
    alive = AgentRegistration("alive-1", tmp_path / "alive-1", tmp_path / "targets")
    dead = AgentRegistration("dead-1", tmp_path / "dead-1", tmp_path / "targets")
    for other in (alive, dead):
        other.run_directory.mkdir()
    alive.acquire()
    for other in (alive, dead):
        other.register("127.0.0.1", 1)
    new = AgentRegistration("new-1", tmp_path / "new-1", tmp_path / "targets")
    new.run_directory.mkdir()
    new.register("127.0.0.1", 1)

    assert {path.stem for path in new.targets_directory.iterdir()} == {"alive-1", "new-1"}


def test_writes_how_the_run_ended(presence, tmp_path):
    facts = {"outcome": "died", "ranks": "1"}
    presence.write_outcome(Record("demo-1", WHOLE_RUN, 812, 5.0, Event.STOP, attributes=facts))

    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert (outcome["outcome"], outcome["step"], outcome["ranks"]) == ("died", 812, "1")
