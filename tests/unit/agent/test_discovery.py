"""Roster: what agents of this machine say, with a token where they ask for one."""

from __future__ import annotations

import json

import pytest
from prometheus_client import CollectorRegistry

from sentinel.agent.discovery import query_agent, registration_files
from sentinel.transport.paths import home_dir
from sentinel.web.server import WebServer

STATE = {"run": "live", "state": "running", "step": 3}


@pytest.fixture
def announce():
    """An agent's word of itself, for the run `live`."""

    def write(url):
        folder = home_dir() / "runs" / "live"
        folder.mkdir(parents=True)
        (folder / "agent.json").write_text(json.dumps({"run": "live", "url": url}))
        (found,) = registration_files()
        return found

    return write


@pytest.fixture
def served():
    server = WebServer(CollectorRegistry(), lambda: STATE, list, token="s3cret")
    yield f"http://127.0.0.1:{server.start()}"
    server.stop()


def test_an_agent_tells_whoever_has_its_token(announce, served, monkeypatch):
    """Whatever proxy the environment names: the agent is on this machine."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    assert query_agent(announce(served), "s3cret").state == STATE


def test_an_agent_that_asks_for_a_token_is_not_taken_for_gone(announce, served):
    told = query_agent(announce(served))

    assert (told.state, told.problem) == ({}, "its agent asks for a token")
    assert "SENTINEL_TOKEN" in told.remedy


def test_another_agent_on_the_port_does_not_speak_for_a_run_that_is_gone(announce, served):
    path = announce(served)
    path.write_text(json.dumps({"run": "dead", "url": served}))

    told = query_agent(path, "s3cret")
    assert (told.state, told.problem) == ({}, "its agent is gone")
    assert "sentinel agent --run dead" in told.remedy


@pytest.mark.parametrize("text", ["", "[]", "{}", "\x00"])
def test_a_file_that_says_nothing_is_named(announce, text):
    path = announce("http://127.0.0.1:9")
    path.write_text(text)

    told = query_agent(path)
    assert (told.run, "cannot be read" in told.problem) == ("live", True)
