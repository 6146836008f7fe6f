"""Registration of the one agent of a run: lock, address files, Prometheus target."""

from __future__ import annotations

import json
import os
import socket

import pytest

from sentinel.agent.registration import AgentRegistration, AlreadyServedError
from sentinel.model.record import WHOLE_RUN, Event, Record


@pytest.fixture
def registration(tmp_path):
    return AgentRegistration("demo-1", tmp_path, tmp_path / "targets")


def test_a_second_agent_gets_the_process_id_of_the_first(registration, tmp_path):
    registration.acquire()

    with pytest.raises(AlreadyServedError, match=str(os.getpid())):
        AgentRegistration("demo-1", tmp_path, tmp_path / "targets").acquire()


def test_the_address_is_written_for_users_and_prometheus(registration, tmp_path):
    assert registration.register("127.0.0.1", 13130) == "http://127.0.0.1:13130"

    written = json.loads((tmp_path / "agent.json").read_text())
    (target,) = json.loads((tmp_path / "targets" / "demo-1.json").read_text())
    assert (written["pid"], written["url"]) == (os.getpid(), "http://127.0.0.1:13130")
    assert target["targets"] == ["127.0.0.1:13130"]


def test_an_agent_on_all_addresses_is_registered_by_the_name_of_the_node(registration):
    assert registration.register("0.0.0.0", 1) == f"http://{socket.gethostname()}:1"


def test_release_removes_the_target(registration, tmp_path):
    registration.register("127.0.0.1", 13130)
    registration.release()

    assert list((tmp_path / "targets").iterdir()) == []


def test_only_targets_of_killed_agents_are_removed(tmp_path):
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


def test_the_outcome_of_the_run_is_written(registration, tmp_path):
    attributes = {"outcome": "died", "ranks": "1"}
    registration.write_outcome(
        Record("demo-1", WHOLE_RUN, 812, 5.0, Event.STOP, attributes=attributes)
    )

    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert (outcome["outcome"], outcome["step"], outcome["ranks"]) == ("died", 812, "1")
