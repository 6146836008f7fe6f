"""Delivery by a real agent process: routes, failover, coalescing, and the ping of a healthy run."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support import webhook_receiver
from support.certificates import make_certificate, server_context
from support.rank_processes import ranks, release, until
from support.webhook_receiver import Receiver

from sentinel.notify import outbox
from sentinel.store.database import connect
from sentinel.transport.paths import current_run_dir

TIMEOUT_SECONDS = 240.0
DIVERGED = [1.0] * 10 + [float("nan")] * 30

CONFIG = """
linger_seconds = 1
port = 0
ping_url = "{ping}"

[sinks.revoked]
kind = "webhook"
url = "{revoked}"

[sinks.other_team]
kind = "webhook"
url = "{other_team}"
teams = ["another"]

[sinks.pager]
kind = "webhook"
url = "{pager}"
runs = ["another-*"]
"""


@pytest.fixture
def receivers(tmp_path, monkeypatch):
    """The receivers by name, and the settings file of an agent in the working directory."""
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("SENTINEL_DETECTORS__RUN_STALLED__FLOOR", "3600")
    monkeypatch.chdir(tmp_path)
    with (
        Receiver(webhook_receiver.status(404)) as revoked,
        Receiver() as other_team,
        Receiver() as pager,
        Receiver() as ping,
    ):
        named = {"revoked": revoked, "other_team": other_team, "pager": pager, "ping": ping}
        urls = {name: receiver.url for name, receiver in named.items()}
        (tmp_path / "sentinel.toml").write_text(CONFIG.format(**urls))
        yield named


def messages(receiver):
    """Detector, reason and severity of the accepted notifications."""
    found = [request.json["sentinel"] for request in list(receiver.accepted)]
    return [
        (
            each["incident"]["key"]["detector"],
            each["reason"],
            each["incident"]["severity"],
        )
        for each in found
    ]


def pings(receiver):
    return [request.path.partition("/X")[2] for request in list(receiver.requests)]


NO_PROGRAM = """
linger_seconds = 0
port = 0

[sinks.missing]
kind = "command"
arguments = ["/nonexistent/pager"]

[sinks.pager]
kind = "webhook"
url = "{pager}"
teams = ["another"]
"""


@pytest.mark.chaos
@pytest.mark.full
@pytest.mark.fault("D16", "D17")
def test_a_missing_program_fails_over_to_a_receiver_whose_tls_breaks_off(
    tmp_path, monkeypatch, receivers
):
    """A retry after the five minutes of an error of configuration would be too late."""
    certificate = make_certificate(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with Receiver(tls=server_context(certificate), refused_handshakes=2) as pager, ranks() as begin:
        (tmp_path / "sentinel.toml").write_text(NO_PROGRAM.format(pager=pager.url))
        begin(run="delivered", world=1, steps=len(DIVERGED), values={"loss": DIVERGED})
        command = [sys.executable, "-m", "sentinel", "agent", "--run", "delivered"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as agent:
            try:
                until(lambda: messages(pager), 200.0, "the alert is delivered")
            finally:
                agent.kill()
        assert pager.refused_handshakes == 0


@pytest.mark.fault("D5")
def test_each_receiver_gets_its_notifications_and_a_revoked_one_loses_none(receivers):
    with ranks() as start_rank:
        trainer = start_rank(
            0, run="delivered", world=1, steps=len(DIVERGED), ending="finished",
            values={"loss": DIVERGED}, hold=True, wait=False, every=0.02,
        )  # fmt: skip
        agent = subprocess.Popen(
            [sys.executable, "-m", "sentinel", "agent", "--run", "delivered"],
            stderr=subprocess.DEVNULL,
        )
        until(
            lambda: messages(receivers["other_team"]), TIMEOUT_SECONDS, "the failover was delivered"
        )
        release(trainer)
        assert agent.wait(TIMEOUT_SECONDS) == 0

    # Warning and critical are one message, because the first one is held briefly.
    opened = [each for each in messages(receivers["other_team"]) if each[1] != "resolved"]
    assert len(set(opened)) == len(opened)
    assert {severity for _, _, severity in opened} == {"critical"}
    assert receivers["revoked"].accepted == receivers["pager"].accepted == []
    first, *between, last = pings(receivers["ping"])
    assert (first, last) == ("/start", "/fail"), "the run finished while a critical case fires"
    assert "/fail" in between
    connection = connect(current_run_dir("delivered") / "sentinel.db")
    (problem,) = outbox.delivery_problems(connection)
    states = outbox.count_by_state(connection)
    connection.close()
    assert (problem.sink, problem.last_error) == ("revoked", "HTTP 404")
    assert states["revoked", "dead"] == problem.given_up
    assert ("revoked", "queued") not in states
