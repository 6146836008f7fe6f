"""Discovery of agents, and queries of their state."""

from __future__ import annotations

import json

import pytest
from prometheus_client import CollectorRegistry

from sentinel.agent.discovery import query_agent, registration_files
from sentinel.transport.paths import home_dir
from sentinel.web.server import WebServer

STATE = {"run": "live", "state": "running", "step": 3}


@pytest.fixture
def register():
    """Returns a function that registers the run `live` at a URL and returns the path."""

    def write(url):
        folder = home_dir() / "runs" / "live"
        folder.mkdir(parents=True)
        (folder / "agent.json").write_text(json.dumps({"run": "live", "url": url}))
        (path,) = registration_files()
        return path

    return write


@pytest.fixture
def served():
    server = WebServer(CollectorRegistry(), lambda: STATE, list, token="s3cret")
    yield f"http://127.0.0.1:{server.start()}"
    server.stop()


def test_the_state_is_read_with_the_token_and_without_a_proxy(register, served, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    assert query_agent(register(served), "s3cret").state == STATE


def test_an_agent_that_requires_a_token_is_not_reported_as_stopped(register, served):
    run = query_agent(register(served))

    assert (run.state, run.problem) == ({}, "the agent requires a token")
    assert "SENTINEL_TOKEN" in run.remedy


def test_another_agent_on_the_port_is_not_taken_for_that_of_a_stopped_run(register, served):
    path = register(served)
    path.write_text(json.dumps({"run": "dead", "url": served}))

    run = query_agent(path, "s3cret")
    assert (run.state, run.problem) == ({}, "the agent is not running")
    assert "sentinel agent --run dead" in run.remedy


@pytest.mark.parametrize("text", ["", "[]", "{}", "\x00"])
def test_an_unreadable_registration_is_reported(register, text):
    path = register("http://127.0.0.1:9")
    path.write_text(text)

    run = query_agent(path)
    assert (run.run, "cannot be read" in run.problem) == ("live", True)
