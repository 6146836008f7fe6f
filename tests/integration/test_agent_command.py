"""`sentinel agent` and `sentinel status`: messages and exit statuses."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.rank_processes import ranks, until

from sentinel.store.database import SCHEMA_VERSION
from sentinel.transport.paths import home_dir, run_dir


@pytest.fixture(autouse=True)
def directories(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "0")
    monkeypatch.chdir(tmp_path)


def sentinel(*arguments):
    command = [sys.executable, "-m", "sentinel", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture
def running_agent():
    """The process of an agent that serves the run `live` until the end of the test."""
    command = [sys.executable, "-m", "sentinel", "agent", "--run", "live"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as agent:
        try:
            until((run_dir("live") / "agent.json").exists, 240.0, "the agent is registered")
            yield agent
        finally:
            agent.kill()


def test_a_settings_file_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "sentinel.toml").write_text("port =\n")

    done = sentinel("agent", "--run", "live")
    assert done.returncode == 2
    assert "not valid TOML at line 1, column 7" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.fault("X10")
def test_a_run_id_that_is_a_path_is_rejected():
    done = sentinel("agent", "--run", "../live")

    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    (line,) = done.stderr.splitlines()
    assert line.startswith("sentinel agent: Run id '../live' is not valid")


@pytest.mark.parametrize("settings", [{"SENTINEL_FIRST_RANK_SECONDS": "0"}, {}])
def test_an_agent_waits_for_its_first_rank_as_long_as_it_is_set(settings):
    command = [sys.executable, "-m", "sentinel", "agent", "--run", "late"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ | settings) as agent:
        try:
            if settings:
                assert agent.wait(240.0) == 0
            else:
                until((run_dir("late") / "agent.json").exists, 240.0, "the agent is registered")
                with pytest.raises(subprocess.TimeoutExpired):
                    agent.wait(1.0)
        finally:
            agent.kill()


@pytest.mark.fault("A9")
def test_a_second_agent_exits_with_the_process_id_of_the_first(running_agent):
    done = sentinel("agent", "--run", "live")

    assert (done.returncode, str(running_agent.pid) in done.stderr) == (0, True)


def oom_score_adj(pid):
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@pytest.mark.fault("A14")
def test_an_agent_has_less_priority_than_its_trainer(running_agent):
    """For a CPU, and to stay when memory runs out."""
    pid = running_agent.pid

    assert os.getpriority(os.PRIO_PROCESS, pid) == min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
    assert oom_score_adj(pid) == min(oom_score_adj("self") + 500, 1000)


SERVED_MEANWHILE = """
import sys
from sentinel.agent.registration import AlreadyServedError
from sentinel.agent.run_service import RunService
from sentinel.cli.main import app

def serve(self):
    raise AlreadyServedError("Run live is served by process 7.")

RunService.serve = serve
sys.argv = ["sentinel", "agent", "--run", "live"]
app()
"""


def test_an_agent_that_another_one_replaced_while_its_storage_failed_exits_without_an_error():
    command = [sys.executable, "-c", SERVED_MEANWHILE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert "served by process 7" in done.stderr


@pytest.mark.fault("A12")
def test_a_database_of_a_later_version_is_kept_unchanged_and_the_run_is_monitored():
    with closing(sqlite3.connect(run_dir("live") / "sentinel.db")) as database:
        database.execute(f"pragma user_version={SCHEMA_VERSION + 1}")
    content = (run_dir("live") / "sentinel.db").read_bytes()

    assert set_aside_by_agent().read_bytes() == content
    reason = json.loads((run_dir("live") / "storage.json").read_text())["reason"]
    assert "Upgrade sentinel" in reason


@pytest.mark.fault("S6")
@pytest.mark.parametrize("content", [b"not a database at all" * 500, b"\0" * 40_960, b"SQLite"])
def test_a_damaged_database_is_moved_aside_and_the_run_is_monitored(content):
    (run_dir("live") / "sentinel.db").write_bytes(content)

    assert set_aside_by_agent().read_bytes() == content


def set_aside_by_agent():
    """The database that the agent of a short run set aside."""
    with ranks() as begin:
        begin(0, world=1, ending="finished")
        assert sentinel("agent", "--run", "live").returncode == 0
    assert json.loads((run_dir("live") / "outcome.json").read_text())["outcome"] == "finished"
    (moved,) = run_dir("live").glob("sentinel.db.corrupt-*")
    return moved


def test_status_shows_the_state_of_a_run(running_agent):
    with ranks() as begin:
        begin(0, world=1)
        state = until(lambda: at_step(3), 240.0, "the steps are processed")

    assert (state["run"], state["state"], state["incidents"]) == ("live", "running", [])


def at_step(step):
    """The status of the run once it is at that step, else None."""
    state = query_status()
    return state if state["step"] == step else None


def query_status():
    return json.loads(sentinel("status", "--json").stdout)


def test_status_without_runs():
    assert sentinel("status").stdout == f"No run has an agent under {home_dir()}.\n"


def test_a_killed_agent_is_unreachable(running_agent):
    running_agent.kill()
    running_agent.wait()

    assert query_status()["state"] == "unreachable"
    assert "run `sentinel agent --run live` to start it again" in sentinel("status").stdout
