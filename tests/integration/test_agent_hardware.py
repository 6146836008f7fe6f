"""Metadata and hardware measurements of a run: shown, stored and restored by the agent."""

from __future__ import annotations

import time
from contextlib import closing
from math import inf

import pytest
from prometheus_client import generate_latest
from support.fake_nvml import Card, FakeNvml

from sentinel.agent.main import Agent
from sentinel.config.settings import load_settings
from sentinel.live.node.throughput import ThroughputReader
from sentinel.model.record import Event
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.store.journal import Journal
from sentinel.transport.identity import Identity
from sentinel.transport.paths import current_run_dir, ring_path
from sentinel.transport.record_codec import RecordEncoder, StepStamp
from sentinel.transport.ring import RingWriter


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def ring(tmp_path):
    """The ring of a rank that started, reported metadata, and lost a patch."""
    writer = RingWriter(ring_path("live", 0, 0), Identity("live"), 1 << 20)
    encoder = RecordEncoder(writer.write)
    encoder.write_event(
        Event.START, StepStamp(0, 0, time.time()), {"local_world_size": 1.0}, {"torch": "2"}
    )
    metadata = {"framework": "trl", "output_dir": str(tmp_path), "patch/trl": "on"}
    encoder.write_event(Event.METADATA, StepStamp(0, 0, time.time()), {"beta": 0.1}, metadata)
    failed_patch = {"patch/deepspeed": "off: TypeError in before_step"}
    encoder.write_event(Event.METADATA, StepStamp(0, 0, time.time()), {}, failed_patch)
    return writer


def make_agent():
    agent = Agent("live", load_settings({"port": 0}))
    agent.node_metrics.nvml.library = FakeNvml([Card(), Card(utilisation=10)])
    return agent


def close(agent):
    agent.connection.close()
    agent.registration.release()


def test_metadata_patches_and_gpus_are_shown(ring):
    agent = make_agent()
    for poller in agent.node_metrics.pollers.values():
        poller.poll_once()
    agent.run_once()
    agent.node_metrics.pollers["output"].poll_once()
    state, text = (
        agent.processor.exposition.state(),
        generate_latest(agent.processor.exposition.registry).decode(),
    )
    close(agent)

    assert (state["metadata"]["framework"], state["metadata"]["beta"]) == ("trl", 0.1)
    assert state["patches"]["deepspeed"] == {"off: TypeError in before_step": [0]}
    assert [gpu["gpu_utilisation"] for gpu in state["machine"]["gpus"]] == [0.5, 0.1]
    assert state["machine"]["disks"].keys() == {"state", "output"}
    assert 'sentinel_patch_up{integration="deepspeed",run="live"} 0.0' in text
    assert 'sentinel_run_setting{name="beta",run="live"} 0.1' in text


def test_network_and_disk_throughput_is_shown_exported_and_stored(ring, monkeypatch):
    rates = dict.fromkeys(
        (
            "host_network_received",
            "host_network_sent",
            "host_disk_read",
            "host_disk_written",
        ),
        2e6,
    )
    monkeypatch.setattr(ThroughputReader, "read", lambda _: rates)
    agent = make_agent()
    agent.run_once()
    agent.node_metrics.pollers["io"].poll_once()
    agent.source.last_heartbeat_at = 0.0
    agent.run_once()
    state = agent.processor.exposition.state()
    text = generate_latest(agent.processor.exposition.registry).decode()
    agent.source.last_heartbeat_at = 0.0
    agent.run_once()
    close(agent)

    assert state["machine"]["host"] == rates
    assert 'sentinel_host_network_sent_bytes_per_second{run="live"} 2e+06' in text
    with closing(connect(current_run_dir("live") / "sentinel.db")) as database:
        stored = [
            each.values
            for each in History(database).records("live")
            if each.event is Event.HEARTBEAT
        ]
    assert stored[0]["host_disk_written"] == 2e6


def test_measurements_are_stored_with_their_heartbeat(ring):
    agent = make_agent()
    agent.run_once()
    for poller in agent.node_metrics.pollers.values():
        poller.poll_once()
    agent.source.last_heartbeat_at = 0.0
    agent.run_once()
    agent.source.last_heartbeat_at = 0.0
    agent.run_once()
    close(agent)

    with closing(connect(current_run_dir("live") / "sentinel.db")) as database:
        records = History(database).records("live")
        stored = [each for each in records if each.event is Event.HEARTBEAT]
        journalled = Journal(database).entries_since_snapshot("live")
        assert sum("gpu_utilisation_min" in record.values for record in journalled) == 1
    assert len(stored) == 1
    assert stored[0].values["gpu_utilisation_min"] == 0.1


def test_the_next_agent_shows_the_stored_metadata(ring):
    first = make_agent()
    first.run_once()
    close(first)
    second = make_agent()
    state = second.processor.exposition.state()
    close(second)

    assert state["metadata"]["framework"] == "trl"
    assert state["patches"]["trl"] == {"on": [0]}
    assert state["patches"]["deepspeed"] == {"off: TypeError in before_step": [0]}


def test_the_database_has_a_view_of_the_metadata(ring):
    agent = make_agent()
    agent.run_once()
    close(agent)

    with closing(connect(current_run_dir("live") / "sentinel.db")) as database:
        found = dict(database.execute("select key, value from run_metadata"))
    assert (found["framework"], found["beta"], found["torch"]) == ("trl", 0.1, "2")


def test_an_infinite_setting_is_not_counted_as_non_finite(ring):
    """Only measured values are counted."""
    RecordEncoder(ring.write).write_event(
        Event.METADATA, StepStamp(0, 0, time.time()), {"max_grad_norm": inf}, {}
    )
    agent = make_agent()
    agent.run_once()
    close(agent)

    assert [label for family, label in agent.counters.values if "nonfinite" in family] == []


def test_the_next_agent_shows_the_last_evaluation(ring):
    encoder = RecordEncoder(ring.write)
    encoder.write_event(Event.EVAL, StepStamp(7, 7, time.time()), {"eval_loss": 2.5}, {})
    encoder.write_event(Event.STOP, StepStamp(7, 7, time.time()), {}, {"outcome": "finished"})
    first = make_agent()
    first.run_once()
    close(first)
    second = make_agent()
    state = second.processor.exposition.state()
    close(second)

    assert (state["signals"]["eval_loss"]["value"], state["state"]) == (2.5, "finished")


@pytest.mark.parametrize("provenance", [True, False])
def test_the_provenance_of_a_run_is_stored_unless_it_is_switched_off(ring, provenance):
    agent = Agent("live", load_settings({"port": 0, "privacy": {"provenance": provenance}}))
    deadline = time.monotonic() + (60 if provenance else 0.5)
    while (
        time.monotonic() < deadline
        and "numpy" not in agent.processor.history.run_metadata.as_dict()
    ):
        agent.run_once()
        time.sleep(0.05)
    state = agent.processor.exposition.state()["metadata"]
    stored = agent.processor.history.run_metadata.as_dict()
    close(agent)

    assert ("numpy" in stored) == ("command" in stored) == provenance
    assert state.get("command") == stored.get("command")
