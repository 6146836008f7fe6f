"""An agent with TLS and users, as other people and processes of its machine reach it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest
import requests
from support.certificates import make_certificate
from support.rank_processes import ranks, until
from support.the_only import the_only
from support.vendors import PAGERDUTY_KEY, FakePagerduty
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.web.auth import WRITE_TOKEN_HEADER

TIMEOUT_SECONDS = 240.0
LOSSES = [1.0] * 10 + [float("nan")] * 10
HASH = "$2b$04$7Wnmo2bbySeCXu8y3/skxOm4f1q9R0xEathjAV/tIHHuOgla1CAqS"
"""Of the password "correct", at the lowest cost."""
USER = ("ana", "correct")


class RunningAgent:
    """An agent of a run with NaN, at a port in use, with TLS, a user and an on-call service."""

    def __init__(self, folder, taken, pagerduty, stack):
        self.folder, self.pagerduty, self.taken = folder, pagerduty, taken
        self.certificate = make_certificate(folder)
        tls = {"cert_file": "certificate.pem", "key_file": "key.pem"}
        content = {"tls_server_config": tls, "basic_auth_users": {"ana": HASH}}
        (folder / "web.yml").write_text(json.dumps(content))
        sink = f'[sinks.pagerduty]\nrouting_key = "{PAGERDUTY_KEY}"\nurl = "{pagerduty.url}"\n'
        (folder / "sentinel.toml").write_text(
            f'host = "0.0.0.0"\nport = {taken}\nweb_config_file = "web.yml"\n{sink}'
        )
        self.log = folder / "log"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sentinel", "agent", "--run", "live"],
            stderr=stack.enter_context(self.log.open("wb")),
        )
        stack.callback(self.process.wait, TIMEOUT_SECONDS)
        stack.callback(self.process.terminate)
        self.registration = folder / "home/runs/live/agent.json"
        until(self.registration.exists, TIMEOUT_SECONDS, "the agent is registered")
        self.port = json.loads(self.registration.read_text())["port"]
        self.url = f"https://127.0.0.1:{self.port}"

    def request(self, method, path, **given):
        given = {"auth": USER, "verify": str(self.folder / "certificate.pem")} | given
        return requests.request(method, self.url + path, timeout=TIMEOUT_SECONDS, **given)

    def post(self, path, **content):
        token = self.request("GET", "/api/write-token").json()["token"]
        headers = {WRITE_TOKEN_HEADER: token, "origin": self.url}
        return self.request("POST", path, json=content, headers=headers)


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agent")
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("SENTINEL_HOME", str(folder / "home"))
        patch.setenv("SENTINEL_RUNTIME_DIR", str(folder / "rings"))
        # Its rank takes no further steps, however long the tests take.
        patch.setenv("SENTINEL_DISABLE", "run_stalled")
        patch.chdir(folder)
        pagerduty = stack.enter_context(FakePagerduty())
        taken = stack.enter_context(socket.socket())
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        start_rank = stack.enter_context(ranks())
        start_rank(0, world=1, steps=20, values={"loss": LOSSES})
        yield RunningAgent(folder, taken.getsockname()[1], pagerduty, stack)


@pytest.fixture
def sentinel(agent, monkeypatch):
    """Returns a function: the output of a command of the same user."""
    monkeypatch.setenv("SENTINEL_HOME", str(agent.folder / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(agent.folder / "rings"))
    return lambda *arguments: CliRunner().invoke(app, arguments).stdout


@pytest.mark.fault("H4")
def test_the_next_free_port_is_used_and_registered(agent):
    file = agent.folder / "home/targets/live.json"
    until(file.exists, TIMEOUT_SECONDS, "the file of targets")
    (target,) = json.loads(file.read_text())

    assert agent.taken < agent.port < agent.taken + 50
    assert target["targets"][0].endswith(f":{agent.port}")
    assert target["labels"] == {"__scheme__": "https"}


@pytest.mark.fault("X3", "X4")
def test_others_need_the_password(agent):
    for path in ("/", "/metrics", "/api/run", "/api/write-token"):
        assert agent.request("GET", path).ok
        assert agent.request("GET", path, auth=None).status_code == 401
        assert agent.request("GET", path, auth=("ana", "wrong")).status_code == 401
    assert agent.request("GET", "/-/healthy", auth=None).ok


@pytest.mark.fault("X4")
def test_processes_of_the_user_need_neither_password_nor_authority(agent, sentinel):
    run = json.loads(sentinel("status", "--json"))

    assert (run["url"][:8], run["state"]) == ("https://", "running")
    checks = sentinel("doctor", "--quick")
    assert "ok    run live: running, monitored at https://" in checks
    assert agent.registration.stat().st_mode & 0o077 == 0


@pytest.mark.fault("X5")
def test_an_acknowledgement_of_the_page_is_shown_logged_and_sent(agent, sentinel):
    until(lambda: agent.pagerduty.alerts, TIMEOUT_SECONDS, "the notification")
    answer = agent.post("/api/acknowledge", reason="looking", author="another")
    events = the_only(agent.pagerduty.alerts.values())

    assert f"https://{socket.gethostname()}:{agent.port}" in json.dumps(events[0])
    assert answer.json()["acknowledged"][0]["author"] == "ana"
    until(
        lambda: "acknowledge" in [each["event_action"] for each in events],
        TIMEOUT_SECONDS,
        "the acknowledgement at the service",
    )
    assert "acknowledged by ana: looking" in sentinel("status")
    assert "acknowledged live/nan_or_inf#1 by ana from 127.0.0.1: looking" in agent.log.read_text()


@pytest.mark.fault("X5")
def test_a_silence_of_the_page_is_shown_and_ended(agent):
    assert agent.post("/api/silence", **{"for": "2h", "detector": "loss_spike"}).ok
    until(lambda: silence_count(agent), TIMEOUT_SECONDS, "the silence is in effect")
    assert "silenced loss_spike until" in agent.log.read_text()

    assert agent.post("/api/silence", end=True).json() == {"ended": 1}
    until(lambda: not silence_count(agent), TIMEOUT_SECONDS, "the silence is over")


def silence_count(agent):
    return len(agent.request("GET", "/api/run").json()["silences"])


@pytest.mark.fault("X4")
def test_a_renewed_certificate_is_served_without_a_restart(agent, sentinel):
    """To those that connect, and to the commands."""
    make_certificate(agent.folder)

    until(lambda: is_accepted(agent), TIMEOUT_SECONDS, "the new certificate")
    assert json.loads(sentinel("status", "--json"))["state"] == "running"


def is_accepted(agent):
    try:
        return agent.request("GET", "/metrics").ok
    except requests.exceptions.SSLError:
        return False
