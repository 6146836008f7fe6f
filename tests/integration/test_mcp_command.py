"""`sentinel mcp` as a process, with a live run and a past one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing

import pytest
from mcp.client.stdio import StdioServerParameters, stdio_client
from support.mcp_clients import TIMEOUT_SECONDS, call_tools
from support.rank_processes import until
from support.stored_homes import write_run

from sentinel.store.database import connect
from sentinel.store.silences import active_silences
from sentinel.transport.paths import is_agent_running

TRAINER = """
import json, os, sys, time
import sentinel

requested = {}
with sentinel.monitor(run="live"):
    for step in range(1, 20_001):
        sentinel.log({"loss": 2.0 if step < 40 else float("nan")}, step=step)
        for action in sentinel.requested():
            requested.setdefault(action, step)
        if "stop" in requested:
            break
        time.sleep(0.02)
print(json.dumps(requested), flush=True)
"""


@pytest.fixture
def home(tmp_path):
    write_run(tmp_path, run="past", steps=30, ranks=1)
    return tmp_path


@pytest.fixture
def environ(home):
    own = {
        "SENTINEL_HOME": str(home),
        "SENTINEL_RUNTIME_DIR": str(home / "shm"),
        "SENTINEL_RUN_ID": "live",
        "SENTINEL_LINGER_SECONDS": "0.5",
        "SENTINEL_PORT": "0",
    }
    return {**os.environ, **own}


@pytest.fixture
def trainer(home, environ):
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINER], env=environ, stdout=subprocess.PIPE, text=True, cwd=home
    )
    yield process
    process.kill()
    process.communicate()
    wait_for_agent(home)


def wait_for_agent(home):
    shared = home / "shm" / "live"
    until(lambda: not is_agent_running(shared), TIMEOUT_SECONDS, "the agent has ended")


def test_an_agent_asks_about_a_live_run_saves_it_and_stops_it(home, environ, trainer):
    """The questions in the order in which an agent asks them, over standard input and output."""
    database = home / "runs" / "live" / "sentinel.db"
    until(database.exists, TIMEOUT_SECONDS, "the run is stored")
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "sentinel", "mcp", "--allow-actions"], env=environ
    )
    listed, wait, why, silence, save, stop = call_tools(
        stdio_client(parameters),
        ("list_runs", {}),
        ("wait", {"run": "live", "until": ["unhealthy"], "seconds": 200}),
        ("why", {"run": "live"}),
        ("silence", {"run": "live", "duration": "2h", "reason": "known"}),
        ("request_checkpoint", {"run": "live", "reason": "before the stop"}),
        ("stop", {"run": "live", "reason": "the loss is NaN"}),
    )

    live = {each["run"]: each["is_live"] for each in listed.data["runs"]}
    assert live == {"live": True, "past": False}
    assert (wait.data["outcome"], wait.data["status"]) == ("reached", "critical")
    assert why.data["onset_step"] == 40
    assert silence.data["seconds"] == 7200
    output, _ = trainer.communicate(timeout=TIMEOUT_SECONDS)
    # Until then it works in shared memory.
    wait_for_agent(home)
    with closing(connect(database)) as connection:
        (stored,) = active_silences(connection, 0)
        rows = connection.execute("select actions, step, cause from command order by number")
        commands = {action: (step, cause) for action, step, cause in rows}
    assert (stored.author, stored.comment) == ("mcp mcp", "known")
    assert json.loads(output) == {action: step for action, (step, _) in commands.items()}
    for action, answer in (("checkpoint", save.data), ("stop", stop.data)):
        # On a busy machine an answer does not wait until the command is planned.
        assert answer.get("at_step", commands[action][0]) == commands[action][0]
        assert answer["status"] == "planned" or answer["status"].startswith("waiting")
    assert [cause for _, cause in commands.values()] == [
        "checkpoint requested by mcp mcp: before the stop",
        "stop requested by mcp mcp: the loss is NaN",
    ]
