"""An agent that a scheduler stops sends what it has found: no other agent may follow it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress

import pytest
from support.rank_processes import ranks, until
from support.webhook_receiver import Receiver, hang

TIMEOUT_SECONDS = 240.0
NAN = {"loss": [1.0] * 10 + [float("nan")] * 10}


@pytest.fixture
def stop_agent(tmp_path, monkeypatch):
    """Returns a function that stops an agent before its notification is sent."""
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    database = tmp_path / "rings" / "live" / "state" / "sentinel.db"

    def queued():
        with (
            suppress(sqlite3.OperationalError),
            closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection,
        ):
            return connection.execute("select count(*) from outbox").fetchone()[0]
        return 0

    def stop(receiver):
        environ = os.environ | {
            "SENTINEL_PORT": "0",
            "SENTINEL_HOLD_SECONDS": "2",
            "SENTINEL_NODE_POLL_SECONDS": "0",
            "SENTINEL_SINKS__WEBHOOK__URL": receiver.url,
        }
        command = [sys.executable, "-m", "sentinel", "agent", "--run", "live"]
        with ranks() as start_rank:
            start_rank(0, world=1, steps=20, values=NAN)
            agent = subprocess.Popen(command, env=environ)
            try:
                until(queued, TIMEOUT_SECONDS, "a queued notification")
                agent.send_signal(signal.SIGTERM)
                return agent.wait(TIMEOUT_SECONDS)
            finally:
                agent.kill()
                agent.wait()

    return stop


@pytest.mark.fault("D10")
def test_a_stopped_agent_sends_what_is_queued(stop_agent):
    with Receiver() as receiver:
        assert stop_agent(receiver) == 0
        assert [request.json["status"] for request in receiver.accepted] == ["firing"]


@pytest.mark.full
@pytest.mark.fault("D8")
def test_a_stopped_agent_ends_although_its_receiver_hangs(stop_agent):
    with Receiver(default=hang()) as receiver:
        assert stop_agent(receiver) == 0
        assert len(receiver.requests) == 1
