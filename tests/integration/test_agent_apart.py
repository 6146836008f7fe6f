"""The agent of the units in `deploy/` is apart from the training, and reports its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest
from support.rank_processes import until
from support.the_only import the_only
from support.webhook_receiver import Receiver

TIMEOUT_SECONDS = 240.0
TRAINING = """
import time, sentinel
with sentinel.monitor():
    for step in range(1, 100000):
        sentinel.log({"loss": 1.0}, step=step)
        time.sleep(0.02)
"""


def kill_tree(process):
    for each in [process, *process.children(recursive=True)]:
        each.kill()


@pytest.mark.full
@pytest.mark.fault("X15")
def test_a_training_that_is_killed_with_its_launcher_is_reported(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    with Receiver() as receiver:
        environ = os.environ | {
            "SENTINEL_HOME": str(tmp_path / "home"),
            "SENTINEL_RUNTIME_DIR": str(tmp_path / "rings"),
            "SENTINEL_RUN_ID": "grpo-7b",
            "SENTINEL_PORT": "0",
            "SENTINEL_LINGER_SECONDS": "0",
            "SENTINEL_NODE_POLL_SECONDS": "0",
            "SENTINEL_SINKS__WEBHOOK__URL": receiver.url,
        }
        sentinel = [sys.executable, "-m", "sentinel"]
        agent = subprocess.Popen([*sentinel, "agent", "--run", "grpo-7b"], env=environ)
        log = tmp_path / "home" / "runs" / "grpo-7b" / "agent.lock"
        until(log.exists, TIMEOUT_SECONDS, "the agent runs")
        words = [*sentinel, "run", "--", sys.executable, str(tmp_path / "train.py")]
        training = subprocess.Popen(words, env=environ)
        try:
            rings = tmp_path / "rings" / "grpo-7b"
            until(lambda: [*rings.glob("*.ring")], TIMEOUT_SECONDS, "a rank")
            kill_tree(psutil.Process(training.pid))
            assert training.wait() == -signal.SIGKILL
            assert agent.wait(TIMEOUT_SECONDS) == 0
            body = the_only(request.json for request in receiver.accepted)
            assert body["commonLabels"]["detector"] == "run_died"
        finally:
            kill_tree(psutil.Process(training.pid)) if training.poll() is None else None
            agent.kill()
            agent.wait()
            training.wait()
