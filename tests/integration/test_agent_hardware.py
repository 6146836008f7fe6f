"""Agent: what ranks say of themselves and what it measures itself are shown, kept and restored."""

from __future__ import annotations

import time
from contextlib import closing
from math import inf

import pytest
from prometheus_client import generate_latest
from support.fake_nvml import Card, FakeNvml

from sentinel.agent.main import Agent
from sentinel.config.settings import load_settings
from sentinel.model.record import Event
from sentinel.store.database import connect
from sentinel.store.journal import Journal
from sentinel.transport.identity import Identity
from sentinel.transport.paths import ring_path, run_dir
from sentinel.transport.record_codec import RecordEncoder, StepStamp
from sentinel.transport.ring import RingWriter


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def said(tmp_path):
    """A rank that started, found out what it is, and lost a tap."""
    ring = RingWriter(ring_path("live", 0, 0), Identity("live"), 1 << 20)
    packer = RecordEncoder(ring.write)
    packer.write_event(
        Event.START, StepStamp(0, 0, time.time()), {"local_world_size": 1.0}, {"torch": "2"}
    )
    facts = {"framework": "trl", "output_dir": str(tmp_path), "tap/trl": "on"}
    packer.write_event(Event.METADATA, StepStamp(0, 0, time.time()), {"beta": 0.1}, facts)
    lost = {"tap/deepspeed": "off: TypeError in before_step"}
    packer.write_event(Event.METADATA, StepStamp(0, 0, time.time()), {}, lost)
    return ring


def begun():
    agent = Agent("live", load_settings({"port": 0}))
    agent.node_poller.nvml.library = FakeNvml([Card(), Card(utilisation=10)])
    return agent


def left(agent):
    agent.connection.close()
    agent.registration.withdraw()


def test_facts_taps_and_gpus_are_shown(said):
    agent = begun()
    for watch in agent.node_poller.watches.values():
        watch.once()
    agent.run_once()
    agent.node_poller.watches["output"].once()
    state, text = (
        agent.processor.exposition.state(),
        generate_latest(agent.processor.exposition.registry).decode(),
    )
    left(agent)

    assert (state["metadata"]["framework"], state["metadata"]["beta"]) == ("trl", 0.1)
    assert state["patches"]["deepspeed"] == {"off: TypeError in before_step": [0]}
    assert [gpu["gpu_utilisation"] for gpu in state["machine"]["gpus"]] == [0.5, 0.1]
    assert state["machine"]["disks"].keys() == {"state", "output"}
    assert 'sentinel_patch_up{integration="deepspeed",run="live"} 0.0' in text
    assert 'sentinel_run_setting{name="beta",run="live"} 0.1' in text


def test_what_was_measured_is_kept_with_the_ticks_that_told_it(said):
    agent = begun()
    agent.run_once()
    for watch in agent.node_poller.watches.values():
        watch.once()
    agent.source.ticked = 0.0
    agent.run_once()
    agent.source.ticked = 0.0
    agent.run_once()
    left(agent)

    with closing(connect(run_dir("live") / "sentinel.db")) as database:
        kept = database.execute("select vals from step where event = 'heartbeat'").fetchall()
        journalled = Journal(database).entries_since_snapshot("live")
        assert sum("gpu_utilisation_min" in record.values for record in journalled) == 1
    assert len(kept) == 1
    assert '"gpu_utilisation_min": 0.1' in kept[0][0]


def test_the_next_agent_shows_the_run_as_the_last_one_knew_it(said):
    first = begun()
    first.run_once()
    left(first)
    second = begun()
    state = second.processor.exposition.state()
    left(second)

    assert state["metadata"]["framework"] == "trl"
    assert state["patches"]["trl"] == {"on": [0]}
    assert state["patches"]["deepspeed"] == {"off: TypeError in before_step": [0]}


def test_the_facts_are_a_view_of_the_database(said):
    agent = begun()
    agent.run_once()
    left(agent)

    with closing(connect(run_dir("live") / "sentinel.db")) as database:
        found = dict(database.execute("select key, value from facts"))
    assert (found["framework"], found["beta"], found["torch"]) == ("trl", 0.1, "2")


def test_a_setting_without_a_limit_is_no_lost_value(said):
    """Only what training measured is counted as not a number."""
    RecordEncoder(said.write).write_event(
        Event.METADATA, StepStamp(0, 0, time.time()), {"max_grad_norm": inf}, {}
    )
    agent = begun()
    agent.run_once()
    left(agent)

    assert [label for family, label in agent.counters.counts if "nonfinite" in family] == []


def test_the_next_agent_shows_what_the_last_evaluation_measured(said):
    packer = RecordEncoder(said.write)
    packer.write_event(Event.EVAL, StepStamp(7, 7, time.time()), {"eval_loss": 2.5}, {})
    packer.write_event(Event.STOP, StepStamp(7, 7, time.time()), {}, {"outcome": "finished"})
    first = begun()
    first.run_once()
    left(first)
    second = begun()
    state = second.processor.exposition.state()
    left(second)

    assert (state["signals"]["eval_loss"]["value"], state["state"]) == (2.5, "finished")
