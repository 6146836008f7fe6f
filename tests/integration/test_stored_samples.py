"""The texts that an agent stores, and the places that they must not reach."""

from __future__ import annotations

import json
import logging
from contextlib import closing

import pytest
from support.sample_files import verl
from support.sample_records import run_record, sample

from sentinel.agent.main import Agent
from sentinel.client.capture.text_sampling import GeneratedBatch
from sentinel.client.guard import ErrorGuard
from sentinel.client.recorder import Recorder
from sentinel.config.settings import load_settings
from sentinel.model.record import Event
from sentinel.pipeline.engine import Result
from sentinel.readers import sample_files
from sentinel.store.database import connect
from sentinel.store.samples import SampleStore
from sentinel.transport.identity import Identity
from sentinel.transport.paths import ring_path, run_dir
from sentinel.transport.ring import RingWriter

CANARY = "CANARY-7c1e"
EXPOSED_COLUMNS = {"outbox": "notification", "incident": "body", "layout": "body"}
"""Columns with content that is shown or sent to others."""


@pytest.fixture
def store(tmp_path):
    with closing(connect(tmp_path / "sentinel.db")) as connection:
        yield SampleStore(connection, max_stored=5)


def add(store, *records):
    for record in records:
        store.update(Result(record))


@pytest.mark.fault("X16")
def test_only_the_newest_texts_are_stored(store):
    add(store, *(sample(step, f"text {step}") for step in range(12)))

    assert [sample["step"] for sample in store.newest()] == [7, 8, 9, 10, 11]
    assert [sample["completion"] for sample in store.newest(step=9)] == ["text 9"]
    assert [sample["step"] for sample in store.newest(limit=2)] == [10, 11]
    assert store.newest(step=3) == store.newest(limit=0) == store.newest(limit=-1) == []


def test_a_text_is_returned_with_all_its_fields(store):
    values = {"reward": 0.5, "reward/short": -1.0, "advantage": 2.0, "finished": 0.0}
    add(store, sample(7, "answer", rank=2, attempt=1, prompt_length=1.0, **values))

    assert store.newest() == [
        {
            "id": 1,
            "attempt": 1,
            "step": 7,
            "rank": 2,
            "time": 100.0,
            "prompt": "p",
            "completion": "answer",
            "rewards": {"": 0.5, "short": -1.0},
            "length": 6.0,
            "prompt_length": 1.0,
            "advantage": 2.0,
            "finished": False,
        }
    ]


@pytest.mark.parametrize("text", ["\ud83d", "a\x00b", "\x1b[2J", "'; drop table sample; --"])
def test_unusual_texts_are_stored_unchanged(store, text):
    add(store, sample(1, text))
    assert store.newest()[0]["completion"] == text


def test_statistics_and_steps_are_not_stored_as_texts(store):
    add(store, run_record(Event.SAMPLE, 1, sample_empty=0.0), run_record(Event.STEP, 1, loss=1.0))
    assert store.newest() == []


@pytest.fixture
def make_agent(tmp_path, monkeypatch):
    """Creates agents of the run `live` with the given settings."""
    monkeypatch.chdir(tmp_path)
    agents = []

    def make(**settings):
        sinks = {"webhook": {"url": "http://127.0.0.1:9/unused"}}
        agents.append(Agent("live", load_settings({"port": 0, "sinks": sinks, **settings})))
        return agents[-1]

    yield make
    for agent in agents:
        if agent.sample_poller is not None:
            agent.sample_poller.stop()
        agent.connection.close()
        agent.registration.release()


@pytest.fixture
def trainer():
    """The recorder of a ring of the run `live`."""
    ring = RingWriter(ring_path("live", 0, 0), Identity("live"))
    recorder = Recorder(ring, ErrorGuard(ring.count_error, strict=True), lambda: None)
    recorder.record_event(Event.START, None, {"world_size": 1.0, "local_world_size": 1.0})
    yield recorder
    ring.abandon()


def run_until(agent, condition):
    """Run the agent's loop until the condition holds."""
    for _ in range(200):
        agent.run_once()
        if condition():
            return
        agent.stop_requested.wait(0.05)
    raise AssertionError("condition did not hold within 200 iterations")


def test_texts_from_the_ring_are_stored_and_become_signals(make_agent, trainer):
    agent = make_agent(max_samples=3)
    trainer.record_samples(
        GeneratedBatch(["q"] * 5, [f"a b c d {n}" for n in range(5)], [1.0] * 5), step=1
    )
    for _ in range(3):
        trainer.record_step({"loss": 1.0}, {})
    run_until(agent, lambda: "sample_distinct_1" in displayed_values(agent))

    assert [sample["completion"] for sample in agent.processor.samples.newest()] == [
        "a b c d 2",
        "a b c d 3",
        "a b c d 4",
    ]
    assert displayed_values(agent)["sample_distinct_1"] == pytest.approx(9 / 25)
    (record,) = [r for r in agent.processor.history.records("live") if r.event is Event.SAMPLE]
    assert (record.step, record.values["sample_distinct_1"]) == (1, pytest.approx(9 / 25))


def displayed_values(agent):
    """Values on the web page: signals, and other logged names."""
    state = agent.processor.exposition.state()
    return {name: signal["value"] for name, signal in state["signals"].items()} | state["logged"]


def test_an_agent_that_takes_over_stores_no_text_twice(make_agent, trainer):
    first = make_agent()
    trainer.record_samples(GeneratedBatch(["q"] * 2, ["one", "two"]), step=1)
    run_until(first, lambda: len(first.processor.samples.newest()) == 2)
    first.connection.close()
    first.registration.release()

    second = make_agent()
    trainer.record_samples(GeneratedBatch(["q"], ["three"]), step=1)
    run_until(second, lambda: len(second.processor.samples.newest()) > 2)

    assert [sample["completion"] for sample in second.processor.samples.newest()] == [
        "one",
        "two",
        "three",
    ]
    # The texts that the first agent read for the step are restored.
    assert len(second.processor.pipeline.samples.texts_by_step[0, 1].texts) == 3


@pytest.mark.fault("X16")
def test_texts_do_not_reach_notifications_metrics_and_logs(make_agent, trainer, caplog, capfd):
    """They may be confidential."""
    caplog.set_level(logging.DEBUG)
    agent = make_agent(disable=["loss_plateau"])
    text = f"{CANARY} " * 50
    for step in range(1, 30):
        trainer.record_samples(
            GeneratedBatch([text], [text], {"right": [float("nan")]}, [False]), step=step
        )
        trainer.log({"loss": float("nan"), "kl": 1e6}, step=step)
    trainer.close({"outcome": "exception", "exception": "RuntimeError"})
    run_until(agent, agent.processor.pipeline.firing_incidents)

    exposed = [
        json.dumps(agent.processor.exposition.state(), default=str),
        caplog.text,
        *capfd.readouterr(),
    ]
    exposed += [f"{family}" for family in agent.processor.exposition.registry.collect()]
    for table, column in EXPOSED_COLUMNS.items():
        rows = agent.connection.execute(f"select {column} from {table}").fetchall()
        assert rows
        exposed.append(f"{rows}")
    assert CANARY not in "\n".join(exposed)
    assert CANARY in agent.processor.samples.newest()[0]["completion"]
    assert "right" not in f"{dict(agent.counters.values)}"


@pytest.mark.fault("X16")
def test_the_run_directory_is_accessible_to_its_owner_only(make_agent):
    make_agent()
    assert run_dir("live").stat().st_mode & 0o077 == 0


def test_a_sample_is_not_a_step(trainer):
    """It does not advance the step or the step index."""
    trainer.record_samples(GeneratedBatch(["q"], ["a"]), step=100)
    assert (trainer.clock.step_index, trainer.clock.step) == (0, 0)


def test_no_file_is_read_without_a_samples_directory(make_agent, trainer, tmp_path):
    verl(tmp_path, 1)
    assert make_agent().sample_poller is None


def test_texts_from_files_are_stored_once_across_agents(make_agent, trainer, tmp_path, monkeypatch):
    monkeypatch.setattr(sample_files, "SCAN_INTERVAL_SECONDS", 0.2)
    (tmp_path / "out").mkdir()
    first = make_agent(samples_dir=str(tmp_path / "out"))
    run_until(first, lambda: not first.sample_poller.files._is_first_scan)
    verl(tmp_path / "out", 7, size=2)
    run_until(first, lambda: len(first.processor.samples.newest()) >= 2)
    assert [sample["completion"] for sample in first.processor.samples.newest()] == ["a0", "a1"]
    first.connection.close()
    first.registration.release()

    second = make_agent(samples_dir=str(tmp_path / "out"))
    verl(tmp_path / "out", 8, size=1)
    run_until(second, lambda: len(second.processor.samples.newest()) >= 3)

    stored = [(sample["step"], sample["rewards"]) for sample in second.processor.samples.newest()]
    assert stored == [(7, {"": 0.0}), (7, {"": 0.5}), (8, {"": 0.0})]
