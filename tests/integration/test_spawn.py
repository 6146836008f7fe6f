"""Spawn: an agent is kept running, and the trainer never waits for one."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
from support.rank_processes import until

import sentinel
from sentinel.client import spawn
from sentinel.client.spawn import (
    EXIT_BAD_SETTINGS,
    AgentSupervisor,
    agent_command,
    agent_environment,
)
from sentinel.transport.paths import run_dir

PATIENCE = 60.0
NOW = 1000.0


@pytest.fixture
def agents(monkeypatch):
    """Makes every agent run this code instead; and lets every look be a look."""

    def run(code):
        monkeypatch.setattr(spawn, "agent_command", lambda _: [sys.executable, "-c", code])

    monkeypatch.setattr(spawn, "AGENT_POLL_INTERVAL_SECONDS", 0.0)
    return run


def wait_for_end(keeper):
    """Its exit, as the operating system tells it; the keeper has not looked yet."""
    stat = Path(f"/proc/{keeper.child.pid}/stat")

    def ended():
        return stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"

    until(ended, PATIENCE, "the agent ends")


def test_the_agent_is_asked_for_by_run():
    assert agent_command("r-1")[-5:] == ["-m", "sentinel", "agent", "--run", "r-1"]


def test_an_agent_that_fell_is_started_again_later_and_later(agents, monkeypatch):
    monkeypatch.setattr(spawn, "monotonic", lambda: NOW)
    agents("raise SystemExit(1)")
    keeper = AgentSupervisor("run")
    pauses = []
    keeper.start()
    wait_for_end(keeper)
    first = keeper.child
    keeper.poll()
    restarted_at_once = keeper.child is not first
    for _ in range(9):
        wait_for_end(keeper)
        keeper.poll()
        pauses.append(keeper.next_start_at - NOW)
        keeper.next_start_at = 0.0
        keeper.poll()

    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert restarted_at_once
    keeper.release()


def test_a_run_that_another_agent_serves_is_left_to_it_until_it_is_gone(agents):
    agents("")
    keeper = AgentSupervisor("run")
    with (run_dir("run") / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keeper.start()
        for _ in range(3):
            keeper.poll()
        assert keeper.child is None

    keeper.poll()
    assert keeper.child is not None
    keeper.release()


def test_an_agent_that_found_the_run_served_is_not_started_again_meanwhile(agents):
    """The other one came between our look at the lock and our agent's own."""
    agents("")
    keeper = AgentSupervisor("run")
    keeper.start()
    with (run_dir("run") / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wait_for_end(keeper)
        for _ in range(3):
            keeper.poll()
        assert keeper.child is None


def test_an_agent_that_fails_is_said_once_and_tried_again(agents, capsys):
    agents("raise ImportError('no such thing')")
    keeper = AgentSupervisor("run")
    keeper.start()
    for _ in range(3):
        wait_for_end(keeper)
        keeper.poll()
        if keeper.child is None:
            keeper.next_start_at = 0.0
            keeper.poll()

    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no such thing" in said
    keeper.release()


def test_wrong_settings_are_said_once_and_not_tried_again(agents, capsys):
    agents(
        f"import sys; print('noise'); print('port: not a number.'); sys.exit({EXIT_BAD_SETTINGS})"
    )
    keeper = AgentSupervisor("run")
    keeper.start()
    wait_for_end(keeper)
    for _ in range(5):
        keeper.poll()

    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "port: not a number." in said
    assert keeper.next_start_at is None


def test_an_agent_that_cannot_be_started_is_said_once(monkeypatch, capsys):
    monkeypatch.setattr(spawn, "agent_command", lambda _: ["/no/such/program"])
    keeper = AgentSupervisor("run")
    keeper.start()
    keeper.poll()

    assert capsys.readouterr().err.count("\n") == 1


def test_nothing_is_asked_between_two_looks(monkeypatch):
    monkeypatch.setattr(spawn, "monotonic", lambda: NOW)
    keeper = AgentSupervisor("run", next_poll_at=NOW + 0.1)
    monkeypatch.setattr(keeper, "start", lambda: pytest.fail("looked"))
    keeper.next_start_at = 0.0

    keeper.poll()


def test_at_the_end_a_fallen_agent_gets_one_more_chance(agents):
    """What the run ended with must be told by somebody."""
    agents("raise SystemExit(1)")
    keeper = AgentSupervisor("run", restart_delay=60.0)
    keeper.start()
    wait_for_end(keeper)
    first = keeper.child
    keeper.release()

    assert keeper.child is not first
    subprocess.run(["true"], check=True)


def test_the_agent_finds_its_settings_and_its_sources(tmp_path):
    environ = agent_environment({"PYTHONPATH": "mine"}, tmp_path / "sentinel.toml")

    assert environ["SENTINEL_CONFIG"] == str(tmp_path / "sentinel.toml")
    assert environ["PYTHONPATH"].endswith(":mine")


def test_only_local_rank_0_starts_an_agent(agents, monkeypatch, tmp_path):
    agents("")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with sentinel.monitor():
        pass

    assert list(tmp_path.rglob("agent.log")) == []


def test_an_agent_outlives_the_run_in_a_session_of_its_own(agents, tmp_path):
    agents("import os; print(os.getsid(0) == os.getpid(), flush=True)")
    with sentinel.monitor(run="r"):
        pass

    (log,) = tmp_path.rglob("agent.log")
    until(log.read_text, PATIENCE, "the agent speaks")
    assert log.read_text() == "True\n"
