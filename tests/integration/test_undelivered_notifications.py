"""What people see of a receiver that rejects notifications: on page, in commands, metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import requests
from support.rank_processes import ranks, until
from support.webhook_receiver import Receiver, status
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.transport.paths import current_run_dir

TIMEOUT_SECONDS = 240.0
LOSSES = [1.0] * 10 + [float("nan")] * 10


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def agent_url(tmp_path):
    """URL of an agent whose only receiver was revoked, after it was sent a notification."""
    with Receiver(default=status(404)) as receiver, ranks() as start_rank:
        start_rank(0, world=1, steps=20, values={"loss": LOSSES})
        environ = os.environ | {"SENTINEL_PORT": "0", "SENTINEL_SINKS__WEBHOOK__URL": receiver.url}
        agent = subprocess.Popen(
            [sys.executable, "-m", "sentinel", "agent", "--run", "live"], env=environ
        )
        until(lambda: receiver.requests, TIMEOUT_SECONDS, "a request")
        yield json.loads((current_run_dir("live") / "agent.json").read_text())["url"]
        agent.terminate()
        agent.wait(TIMEOUT_SECONDS)


def sentinel(*arguments):
    """Exit status and output of a command."""
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.stdout


@pytest.mark.fault("D5", "D14")
def test_a_rejected_notification_is_shown_everywhere(agent_url):
    def problems():
        return requests.get(f"{agent_url}/api/run", timeout=240).json()["delivery_problems"]

    until(problems, TIMEOUT_SECONDS, "the problem")
    (problem,) = problems()
    # No probe restarts an agent whose receivers fail.
    assert requests.get(f"{agent_url}/-/healthy", timeout=240).status_code == 200
    metrics = requests.get(f"{agent_url}/metrics", timeout=240).text

    assert (problem["sink"], problem["given_up"], problem["last_error"]) == (
        "webhook",
        1,
        "HTTP 404",
    )
    dead = 'sentinel_alerts_undelivered{run="live",sink="webhook",state="dead"} 1.0'
    assert dead in metrics
    assert problem["text"] in sentinel("status")[1]
    (shown,) = sentinel("status", "--json")[1].splitlines()
    assert json.loads(shown)["delivery_problems"] == [problem]
    code, checks = sentinel("doctor", "--quick")
    assert code == 1
    assert f"fail  run live, notifications: {problem['text']}" in checks
