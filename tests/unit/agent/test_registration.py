"""Registration of the one agent of a run: lock, address files, Prometheus target."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from sentinel.agent import registration as registration_module
from sentinel.agent.registration import AgentRegistration, AlreadyServedError
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.transport import paths
from sentinel.transport.paths import AGENT_LOCK, is_agent_running, ring_dir


@pytest.fixture
def registration(tmp_path):
    return start("demo-1", tmp_path)


def start(run, home):
    """A registration that has a run directory, but no lock on this node."""
    registration = AgentRegistration(run, home / "targets")
    directory = home / "runs" / run
    directory.mkdir(parents=True)
    registration.set_directory(directory)
    return registration


def test_a_second_agent_gets_the_process_id_of_the_first(registration, tmp_path):
    registration.acquire()

    with pytest.raises(AlreadyServedError, match=str(os.getpid())):
        AgentRegistration("demo-1", tmp_path / "targets").acquire()


def test_a_full_file_system_does_not_prevent_the_lock(registration, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    registration.acquire()

    with pytest.raises(AlreadyServedError):
        AgentRegistration("demo-1", tmp_path / "targets").acquire()


def test_the_address_is_written_for_users_and_prometheus(registration, tmp_path):
    assert registration.register("127.0.0.1", 13130) == "http://127.0.0.1:13130"

    registration.publish_target()

    written = json.loads((tmp_path / "runs" / "demo-1" / "agent.json").read_text())
    (target,) = json.loads((tmp_path / "targets" / "demo-1.json").read_text())
    assert (written["pid"], written["url"]) == (os.getpid(), "http://127.0.0.1:13130")
    assert target["targets"] == ["127.0.0.1:13130"]


def test_the_port_of_a_killed_agent_is_known(registration, tmp_path):
    assert registration.former_port() == 0

    start("demo-2", tmp_path).register("127.0.0.1", 13132)
    registration.register("127.0.0.1", 13131)

    # Its locks end with its process, and `agent.json` stays.
    assert registration.former_port() == 13131
    file = tmp_path / "runs" / "demo-1" / "agent.json"
    for damaged in ("", "[]", '{"run": "demo-1", "node": "elsewhere", "port": 13131}'):
        file.write_text(damaged)
        assert registration.former_port() == 0


def test_an_agent_on_all_addresses_is_registered_by_the_name_of_the_node(registration):
    assert registration.register("0.0.0.0", 1) == f"http://{socket.gethostname()}:1"


def test_an_agent_is_registered_once_its_file_exists(registration, tmp_path, monkeypatch):
    """Another thread copies the file as soon as the agent is registered."""
    write = registration_module._write_json_atomically
    before = []

    def write_slowly(path, *arguments, **options):
        before.append((registration.is_registered, path.exists()))
        write(path, *arguments, **options)

    monkeypatch.setattr(registration_module, "_write_json_atomically", write_slowly)
    registration.register("127.0.0.1", 13130)

    assert before == [(False, False)]
    assert registration.is_registered
    assert (tmp_path / "runs" / "demo-1" / "agent.json").exists()


def test_a_withdrawn_target_is_removed(registration, tmp_path):
    registration.register("127.0.0.1", 13130)
    registration.publish_target()
    registration.withdraw_target()

    assert list((tmp_path / "targets").iterdir()) == []


def test_only_targets_of_killed_agents_are_removed(tmp_path):
    alive, dead = start("alive-1", tmp_path), start("dead-1", tmp_path)
    for other in (alive, dead):
        other.register("127.0.0.1", 1)
        other.publish_target()
    for descriptor in dead._lock_fds:
        os.close(descriptor)
    new = start("new-1", tmp_path)
    new.register("127.0.0.1", 1)
    new.publish_target()

    assert {path.stem for path in new.targets_directory.iterdir()} == {"alive-1", "new-1"}


def test_the_outcome_of_the_run_is_written(registration, tmp_path):
    attributes = {"outcome": "died", "ranks": "1"}
    registration.write_outcome(
        Record("demo-1", WHOLE_RUN, 812, 5.0, Event.STOP, attributes=attributes)
    )

    outcome = json.loads((tmp_path / "runs" / "demo-1" / "outcome.json").read_text())
    assert (outcome["outcome"], outcome["step"], outcome["ranks"]) == ("died", 812, "1")


@pytest.fixture
def lock_of_killed(tmp_path, monkeypatch):
    """A process that holds the lock of the run, and counts as killed."""
    path = ring_dir("demo-1") / AGENT_LOCK
    code = (
        "import fcntl, os, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX);"
        "file.write(str(os.getpid())); file.flush(); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        owner.stdout.readline()
        monkeypatch.setattr(paths, "is_killed", lambda pid: pid == owner.pid)
        yield path
        owner.kill()


@pytest.mark.fault("A28")
def test_one_agent_replaces_a_killed_one_that_a_disk_holds(lock_of_killed, tmp_path):
    """Of many that start at once."""
    assert not is_agent_running(lock_of_killed.parent)
    agents = [AgentRegistration("demo-1", tmp_path / "targets") for _ in range(16)]

    def acquire(agent):
        try:
            agent.acquire()
        except AlreadyServedError:
            return False
        return True

    with ThreadPoolExecutor(len(agents)) as pool:
        assert sum(pool.map(acquire, agents)) == 1
    assert any(agent.has_replaced_killed for agent in agents)
    assert is_agent_running(lock_of_killed.parent)


@pytest.mark.fault("A28")
def test_the_lock_of_another_process_is_not_replaced(lock_of_killed, tmp_path, monkeypatch):
    """The pid in the file belongs to another namespace of processes."""
    monkeypatch.setattr(paths, "is_killed", lambda _: True)
    lock_of_killed.write_text(str(os.getpid()))
    assert is_agent_running(lock_of_killed.parent)
    with pytest.raises(AlreadyServedError, match=str(os.getpid())):
        AgentRegistration("demo-1", tmp_path / "targets").acquire()


@pytest.mark.fault("A28")
def test_the_home_directory_of_a_killed_agent_does_not_respond(lock_of_killed, tmp_path):
    with pytest.raises(TimeoutError):
        AgentRegistration("demo-1", tmp_path / "targets").lock_home(lock_of_killed.parent)
