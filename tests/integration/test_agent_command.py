"""`sentinel agent` and `sentinel status`: clear words and exit codes for whoever starts them."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from support.rank_processes import ranks, until

from sentinel.store.database import SCHEMA_VERSION
from sentinel.transport.paths import home_dir, run_dir


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "0")
    monkeypatch.chdir(tmp_path)


def sentinel(*words):
    command = [sys.executable, "-m", "sentinel", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture
def served():
    """An agent that serves the run `live`, as long as the test lasts."""
    command = [sys.executable, "-m", "sentinel", "agent", "--run", "live"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as agent:
        try:
            until((run_dir("live") / "agent.json").exists, 120.0, "the agent is up")
            yield agent
        finally:
            agent.kill()


def test_a_wrong_setting_is_named_and_nothing_is_started(tmp_path):
    (tmp_path / "sentinel.toml").write_text("prot = 13130\n")

    done = sentinel("agent", "--run", "live")
    assert done.returncode == 2
    assert '"port"' in done.stderr
    assert "Traceback" not in done.stderr


def test_an_id_that_is_a_path_is_refused():
    done = sentinel("agent", "--run", "../live")

    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "../live" in done.stderr


def test_a_second_agent_leaves_the_run_to_the_first(served):
    done = sentinel("agent", "--run", "live")

    assert (done.returncode, str(served.pid) in done.stderr) == (0, True)


def test_a_database_of_a_later_version_is_left_alone():
    with closing(sqlite3.connect(run_dir("live") / "sentinel.db")) as database:
        database.execute(f"pragma user_version={SCHEMA_VERSION + 1}")

    done = sentinel("agent", "--run", "live")
    assert (done.returncode, "upgrade" in done.stderr) == (2, True)


def test_a_damaged_database_is_set_aside_and_the_run_is_watched(tmp_path):
    (run_dir("live") / "sentinel.db").write_bytes(b"not a database at all" * 500)
    with ranks() as begin:
        begin(0, world=1, ending="finished")
        assert sentinel("agent", "--run", "live").returncode == 0

    assert len(list(run_dir("live").glob("sentinel.db.corrupt-*"))) == 1
    assert json.loads((run_dir("live") / "outcome.json").read_text())["outcome"] == "finished"


def test_status_tells_what_is_served_and_how_it_does(served):
    with ranks() as begin:
        begin(0, world=1)
        state = until(lambda: at_step(3), 120.0, "the steps are seen")

    assert (state["run"], state["state"], state["incidents"]) == ("live", "running", [])


def at_step(step):
    """What is told of the run, once it is at that step."""
    state = asked()
    return state if state["step"] == step else None


def asked():
    return json.loads(sentinel("status", "--json").stdout)


def test_status_of_an_idle_machine_says_so():
    assert sentinel("status").stdout == f"No run is being served under {home_dir()}.\n"


def test_an_agent_that_was_killed_is_told_as_unreachable(served):
    served.kill()
    served.wait()

    assert asked()["state"] == "unreachable"
    assert "sentinel agent --run live takes over" in sentinel("status").stdout
