"""A live agent takes up what people enter, shows it, and tells what waited, without a restart."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from support.rank_processes import ranks, until

from sentinel.agent.main import Agent
from sentinel.config.settings import load_settings
from sentinel.store import silences
from sentinel.store.database import connect
from sentinel.store.silences import Silence
from sentinel.transport.paths import run_dir

PATIENCE = 60.0
LOSSES = [1.0] * 10 + [float("nan")] * 10


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def person():
    with closing(connect(run_dir("live") / "sentinel.db")) as connection:
        yield connection


@pytest.fixture
def sick():
    """Makes an agent whose one rank has lost its loss; the agent's loop is the test's to turn."""
    served = []
    with ranks() as begin:

        def made(tier="page"):
            begin(0, world=1, steps=20, values={"loss": LOSSES})
            sinks = {"webhook": {"url": "http://127.0.0.1:9/nobody"}}
            served.append(Agent("live", load_settings({"port": 0, "sinks": sinks, "tier": tier})))
            return served[0]

        yield made
        served[0].processor.onset_worker.stop(PATIENCE)
        served[0].connection.close()


def queued(person):
    return person.execute("select distinct severity from outbox").fetchall()


def shown(agent, family):
    return {
        sample.value
        for metric in agent.processor.exposition.collect()
        if metric.name == family
        for sample in metric.samples
        if sample.labels["detector"] == "nan_or_inf"
    }


def turned(agent, so):
    def seen():
        agent.run_once()
        return so()

    until(seen, PATIENCE, "the agent has seen it")


def test_a_silence_is_taken_up_shown_and_paid_when_it_ends(sick, person):
    agent = sick()
    silences.add_silence(person, Silence("", time.time(), time.time() + 3600, "ana", "known"))
    turned(agent, lambda: agent.processor.exposition.state()["incidents"])

    incident = agent.processor.exposition.state()["incidents"][0]
    assert (incident["silenced"]["by"], incident["acknowledged"]) == ("ana", None)
    assert agent.processor.exposition.state()["silences"][0]["why"] == "known"
    assert shown(agent, "sentinel_alert_silenced") == {1.0}
    assert queued(person) == []

    silences.expire_silences(person, "", time.time())
    turned(agent, lambda: queued(person))
    assert shown(agent, "sentinel_alert_silenced") == {0.0}


def test_an_acknowledgement_is_shown_while_the_agent_serves(sick, person):
    agent = sick()
    turned(agent, lambda: queued(person))
    silences.acknowledge(person, "", time.time(), "ana", "mine")
    turned(agent, lambda: agent.processor.exposition.state()["incidents"][0]["acknowledged"])

    assert shown(agent, "sentinel_alert_acknowledged") == {1.0}


def test_a_run_of_tier_notify_wakes_nobody_through_prometheus_either(sick, person):
    agent = sick("notify")
    turned(agent, lambda: queued(person))
    firing = [
        sample.labels["severity"]
        for metric in agent.processor.exposition.collect()
        if metric.name == "sentinel_alert_firing"
        for sample in metric.samples
        if sample.value
    ]

    assert set(queued(person)) == {("warning",)}
    assert set(firing) == {"warning"}
    assert agent.processor.exposition.state()["tier"] == "notify"


def test_of_a_quiet_run_everything_is_shown_and_nobody_is_told(sick, person):
    agent = sick("quiet")
    turned(agent, lambda: agent.processor.exposition.state()["incidents"])

    assert shown(agent, "sentinel_alert_silenced") == {1.0}
    assert queued(person) == []
