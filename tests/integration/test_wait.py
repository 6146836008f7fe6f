"""`sentinel wait` for a trainer that becomes sick, loses its agent, and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.rank_processes import until

from sentinel.agent.run_waiting import wait_for_run
from sentinel.transport.paths import AGENT_LOCK, shared_run_dir

TIMEOUT_SECONDS = 240.0
RUN = "awaited"

TRAINER = """
import math, os, sys, time
import sentinel

folder = sys.argv[1]
is_on = lambda name: os.path.exists(f"{folder}/{name}")
step = 0
with sentinel.monitor(run="awaited"):
    while not is_on("stop"):
        step += 1
        sentinel.log({"loss": math.nan if is_on("nan") else 1.0 + 1.0 / step}, step=step)
        time.sleep(0.1)
"""


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    for name, value in {
        "SENTINEL_HOME": str(tmp_path / "home"),
        "SENTINEL_RUNTIME_DIR": str(tmp_path / "rings"),
        "SENTINEL_RUN_ID": RUN,
        "SENTINEL_PORT": "0",
        "SENTINEL_LINGER_SECONDS": "0",
    }.items():
        monkeypatch.setenv(name, value)
    process = subprocess.Popen([sys.executable, "-c", TRAINER, str(tmp_path)])
    try:
        until(agent_pid, TIMEOUT_SECONDS, "an agent serves the run")
        yield process
    finally:
        process.kill()
        process.wait()
        until(lambda: not agent_pid(), TIMEOUT_SECONDS, "the agent has ended")


def agent_pid():
    """Process id of the agent that has the lock; None without one."""
    try:
        pid = int((shared_run_dir(RUN) / AGENT_LOCK).read_text())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid


def test_a_wait_lasts_until_its_condition_whatever_the_agent_does(trainer, tmp_path):
    with ThreadPoolExecutor() as threads:

        def wait(*conditions):
            return threads.submit(wait_for_run, RUN, conditions, TIMEOUT_SECONDS)

        def run_is_known():
            try:
                return wait("step=1").result()
            except LookupError:
                return None

        until(run_is_known, TIMEOUT_SECONDS, "the run is stored")
        sick, of_two = wait("unhealthy"), wait("finished", "unhealthy")
        ended = subprocess.Popen(
            [sys.executable, "-m", "sentinel", "wait", RUN, "--until", "finished", "--json"],
            stdout=subprocess.PIPE,
        )
        assert not sick.done()
        (tmp_path / "nan").touch()

        assert sick.result().to_dict()["outcome"] == "reached"
        assert of_two.result().to_dict()["outcome"] == "unhealthy"
        assert sick.result().verdict["status"] == "critical"
        step = sick.result().verdict["step"]

        os.kill(agent_pid(), signal.SIGKILL)
        assert wait(f"step={step + 20}").result().end.condition
        assert ended.poll() is None
        (tmp_path / "stop").touch()

        output, _ = ended.communicate(timeout=TIMEOUT_SECONDS)
        answer = json.loads(output)
        # The loss was NaN until the end.
        assert (ended.returncode, answer["outcome"]) == (3, "unhealthy")
        assert answer["verdict"]["status"] == "ended_badly"
        assert wait("finished").result().verdict["state"] == "finished"
