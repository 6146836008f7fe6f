"""Probes and a metric show that the loop of an agent no longer turns."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
import requests
from support.rank_processes import ranks, until

from sentinel.agent.main import Agent
from sentinel.config.settings import load_settings
from sentinel.web import http_server

TIMEOUT_SECONDS = 240.0


class HeldAgent:
    """An agent in a thread, whose loop turns while `may_turn` is set."""

    def __init__(self):
        self.may_turn = threading.Event()
        self.may_turn.set()
        self.thread = threading.Thread(target=self._serve)
        self.agent = None

    def _serve(self):
        # A connection of SQLite belongs to the thread that opens it.
        self.agent = Agent("live", load_settings({"port": 0, "baselines": False}))
        poll = self.agent.source.poll

        def poll_when_allowed(*arguments):
            self.may_turn.wait(TIMEOUT_SECONDS)
            return poll(*arguments)

        self.agent.source.poll = poll_when_allowed
        self.agent.serve()

    def get(self, path):
        url = f"http://127.0.0.1:{self.agent.port}{path}"
        return requests.get(url, headers={"connection": "close"}, timeout=TIMEOUT_SECONDS)

    def status(self, path):
        return self.get(path).status_code

    def loop_seconds(self):
        name = 'sentinel_agent_loop_seconds{run="live"} '
        lines = self.get("/metrics").text.splitlines()
        (line,) = [line for line in lines if line.startswith(name)]
        return float(line.removeprefix(name))


@contextmanager
def held_agent():
    held = HeldAgent()
    held.thread.start()
    try:
        until(lambda: held.agent and held.agent.port, TIMEOUT_SECONDS, "the agent listens")
        yield held
    finally:
        held.may_turn.set()
        if held.agent is not None:
            held.agent.stop_requested.set()
        held.thread.join(TIMEOUT_SECONDS)


@pytest.mark.fault("H9")
def test_a_loop_that_hangs_fails_the_probes_until_it_turns_again(monkeypatch):
    monkeypatch.setattr(http_server, "MAX_READY_SECONDS", 1.5)
    monkeypatch.setattr(http_server, "MAX_HEALTHY_SECONDS", 3.0)
    with ranks() as begin:
        begin(0, world=1, steps=5)
        with held_agent() as held:
            until(lambda: held.status("/-/ready") == 200, TIMEOUT_SECONDS, "it is ready")
            held.may_turn.clear()
            until(lambda: held.status("/-/ready") == 503, TIMEOUT_SECONDS, "it is not ready")
            until(lambda: held.status("/-/healthy") == 503, TIMEOUT_SECONDS, "it is not healthy")
            assert held.loop_seconds() > 3.0
            held.may_turn.set()
            until(lambda: held.status("/-/ready") == 200, TIMEOUT_SECONDS, "it is ready again")
            assert held.status("/-/healthy") == 200
        assert held.agent.loop_seconds() == 0.0
