"""Tests that a live agent applies silences and acknowledgements without a restart."""

from __future__ import annotations

import time

import pytest
from support.rank_processes import ranks, until

from sentinel.agent.main import Agent
from sentinel.config.settings import load_settings
from sentinel.store import silences
from sentinel.store.database import connect
from sentinel.store.silences import Silence
from sentinel.transport.paths import current_run_dir

TIMEOUT_SECONDS = 240.0
LOSSES = [1.0] * 10 + [float("nan")] * 10


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def make_agent():
    """Returns a function that makes an agent of a rank with NaN loss, and a user's connection.

    The test runs the loop of the agent.
    """
    agents, connections = [], []
    with ranks() as start_rank:

        def make(tier="page"):
            start_rank(0, world=1, steps=20, values={"loss": LOSSES})
            sinks = {"webhook": {"url": "http://127.0.0.1:9/unused"}}
            agents.append(Agent("live", load_settings({"port": 0, "sinks": sinks, "tier": tier})))
            connections.append(connect(current_run_dir("live") / "sentinel.db"))
            return agents[0], connections[0]

        yield make
        agents[0].processor.onset_worker.stop(TIMEOUT_SECONDS)
        agents[0].connection.close()
        connections[0].close()


def queued_severities(connection):
    return connection.execute("select distinct severity from outbox").fetchall()


def metric_values(agent, family):
    return {
        sample.value
        for metric in agent.processor.exposition.registry.collect()
        if metric.name == family
        for sample in metric.samples
        if sample.labels["detector"] == "nan_or_inf"
    }


def run_until(agent, condition):
    def run_once():
        agent.run_once()
        return condition()

    until(run_once, TIMEOUT_SECONDS, "condition met")


def test_a_silence_is_shown_and_its_notification_sent_when_it_ends(make_agent):
    agent, user_connection = make_agent()
    silences.add_silence(
        user_connection, Silence("", time.time(), time.time() + 3600, "ana", "known")
    )
    run_until(agent, lambda: agent.processor.exposition.state()["incidents"])

    incident = agent.processor.exposition.state()["incidents"][0]
    assert (incident["silenced"]["author"], incident["acknowledged"]) == ("ana", None)
    assert agent.processor.exposition.state()["silences"][0]["comment"] == "known"
    assert metric_values(agent, "sentinel_alert_silenced") == {1.0}
    assert queued_severities(user_connection) == []

    silences.expire_silences(user_connection, "", time.time())
    run_until(agent, lambda: queued_severities(user_connection))
    assert metric_values(agent, "sentinel_alert_silenced") == {0.0}


def test_an_acknowledgement_is_shown(make_agent):
    agent, user_connection = make_agent()
    run_until(agent, lambda: queued_severities(user_connection))
    silences.acknowledge(user_connection, "", time.time(), "ana", "mine")
    run_until(agent, lambda: agent.processor.exposition.state()["incidents"][0]["acknowledged"])

    assert metric_values(agent, "sentinel_alert_acknowledged") == {1.0}


def test_tier_notify_lowers_the_severity_in_prometheus_too(make_agent):
    agent, user_connection = make_agent("notify")
    run_until(agent, lambda: queued_severities(user_connection))
    firing = [
        sample.labels["severity"]
        for metric in agent.processor.exposition.registry.collect()
        if metric.name == "sentinel_alert_firing"
        for sample in metric.samples
        if sample.value
    ]

    assert set(queued_severities(user_connection)) == {("warning",)}
    assert set(firing) == {"warning"}
    assert agent.processor.exposition.state()["tier"] == "notify"


def test_tier_quiet_shows_incidents_and_sends_nothing(make_agent):
    agent, user_connection = make_agent("quiet")
    run_until(agent, lambda: agent.processor.exposition.state()["incidents"])

    assert metric_values(agent, "sentinel_alert_silenced") == {1.0}
    assert queued_severities(user_connection) == []
