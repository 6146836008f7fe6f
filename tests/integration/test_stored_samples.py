"""Samples kept: the texts that an agent stores, and where they do not go."""

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
SENT_AWAY = {"outbox": "notification", "incident": "body", "step": "attributes"}
"""Columns of what is shown to others, or sent."""


@pytest.fixture
def shelf(tmp_path):
    with closing(connect(tmp_path / "sentinel.db")) as connection:
        yield SampleStore(connection, max_stored=5)


def kept(shelf, *records):
    for record in records:
        shelf.update(Result(record))


def test_only_the_newest_texts_stay(shelf):
    kept(shelf, *(sample(step, f"text {step}") for step in range(12)))

    assert [told["step"] for told in shelf.newest()] == [7, 8, 9, 10, 11]
    assert [told["completion"] for told in shelf.newest(step=9)] == ["text 9"]
    assert [told["step"] for told in shelf.newest(limit=2)] == [10, 11]
    assert shelf.newest(step=3) == shelf.newest(limit=0) == shelf.newest(limit=-1) == []


def test_a_text_is_told_with_all_that_is_known_of_it(shelf):
    values = {"reward": 0.5, "reward/short": -1.0, "advantage": 2.0, "finished": 0.0}
    kept(shelf, sample(7, "said", rank=2, attempt=1, prompt_length=1.0, **values))

    assert shelf.newest() == [
        {
            "attempt": 1,
            "step": 7,
            "rank": 2,
            "time": 100.0,
            "prompt": "p",
            "completion": "said",
            "rewards": {"": 0.5, "short": -1.0},
            "length": 4.0,
            "prompt_length": 1.0,
            "advantage": 2.0,
            "finished": False,
        }
    ]


@pytest.mark.parametrize("said", ["\ud83d", "a\x00b", "\x1b[2J", "'; drop table sample; --"])
def test_no_text_is_too_odd_to_be_kept(shelf, said):
    kept(shelf, sample(1, said))
    assert shelf.newest()[0]["completion"] == said


def test_statistics_and_steps_are_not_kept_as_texts(shelf):
    kept(shelf, run_record(Event.SAMPLE, 1, sample_empty=0.0), run_record(Event.STEP, 1, loss=1.0))
    assert shelf.newest() == []


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Make an agent of the run `live`, with these settings."""
    monkeypatch.chdir(tmp_path)
    made = []

    def make(**settings):
        sinks = {"webhook": {"url": "http://127.0.0.1:9/nobody"}}
        made.append(Agent("live", load_settings({"port": 0, "sinks": sinks, **settings})))
        return made[-1]

    yield make
    for agent in made:
        if agent.sample_poller is not None:
            agent.sample_poller.stop()
        agent.connection.close()
        agent.registration.release()


@pytest.fixture
def trainer():
    """A ring of the run `live`, and who writes to it."""
    ring = RingWriter(ring_path("live", 0, 0), Identity("live"))
    recorder = Recorder(ring, ErrorGuard(ring.count_error, strict=True), lambda: None)
    recorder.record_event(Event.START, None, {"world_size": 1.0, "local_world_size": 1.0})
    yield recorder
    ring.abandon()


def turns(agent, condition):
    """Turn the crank until it holds."""
    for _ in range(200):
        agent.run_once()
        if condition():
            return
        agent.stop_requested.wait(0.05)
    raise AssertionError("not within 200 turns")


def test_texts_from_the_ring_are_kept_and_become_signals(served, trainer):
    agent = served(max_samples=3)
    trainer.record_samples(
        GeneratedBatch(["q"] * 5, [f"a b c d {n}" for n in range(5)], [1.0] * 5), step=1
    )
    for _ in range(3):
        trainer.record_step({"loss": 1.0}, {})
    turns(agent, lambda: "sample_distinct_1" in shown(agent))

    assert [told["completion"] for told in agent.processor.samples.newest()] == [
        "a b c d 2",
        "a b c d 3",
        "a b c d 4",
    ]
    assert shown(agent)["sample_distinct_1"] == pytest.approx(9 / 25)
    (told,) = [r for r in agent.processor.history.all("live") if r.event is Event.SAMPLE]
    assert (told.step, told.values["sample_distinct_1"]) == (1, pytest.approx(9 / 25))


def shown(agent):
    """Values on the page: of signals, and of names of one's own."""
    state = agent.processor.exposition.state()
    return {name: told["value"] for name, told in state["signals"].items()} | state["logged"]


def test_an_agent_that_takes_over_keeps_no_text_twice(served, trainer):
    first = served()
    trainer.record_samples(GeneratedBatch(["q"] * 2, ["one", "two"]), step=1)
    turns(first, lambda: len(first.processor.samples.newest()) == 2)
    first.connection.close()
    first.registration.withdraw()

    second = served()
    trainer.record_samples(GeneratedBatch(["q"], ["three"]), step=1)
    turns(second, lambda: len(second.processor.samples.newest()) > 2)

    assert [told["completion"] for told in second.processor.samples.newest()] == [
        "one",
        "two",
        "three",
    ]
    # What the first had heard of the step is not forgotten.
    assert len(second.processor.fold.samples.steps[0, 1].texts) == 3


def test_texts_stay_out_of_pages_metrics_and_logs(served, trainer, caplog, capfd):
    """They may be anybody's words."""
    caplog.set_level(logging.DEBUG)
    agent = served(disable=["loss_plateau"])
    said = f"{CANARY} " * 50
    for step in range(1, 30):
        trainer.record_samples(
            GeneratedBatch([said], [said], {"right": [float("nan")]}, [False]), step=step
        )
        trainer.log({"loss": float("nan"), "kl": 1e6}, step=step)
    trainer.close({"outcome": "exception", "exception": "RuntimeError"})
    turns(agent, agent.processor.fold.firing)

    told = [
        json.dumps(agent.processor.exposition.state(), default=str),
        caplog.text,
        *capfd.readouterr(),
    ]
    told += [f"{family}" for family in agent.processor.exposition.collect()]
    for table, column in SENT_AWAY.items():
        rows = agent.connection.execute(f"select {column} from {table}").fetchall()
        assert rows
        told.append(f"{rows}")
    assert CANARY not in "\n".join(told)
    assert CANARY in agent.processor.samples.newest()[0]["completion"]
    assert "right" not in f"{dict(agent.counters.values)}"


def test_the_runs_directory_is_its_owners_alone(served):
    served()
    assert run_dir("live").stat().st_mode & 0o077 == 0


def test_a_sample_is_no_step(trainer):
    """It takes none, and shifts no beat."""
    trainer.record_samples(GeneratedBatch(["q"], ["a"]), step=100)
    assert (trainer.clock.step_index, trainer.clock.step) == (0, 0)


def test_no_file_is_read_unless_a_folder_is_named(served, trainer, tmp_path):
    verl(tmp_path, 1)
    assert served().files is None


def test_texts_from_files_are_kept_once_by_whatever_agent(served, trainer, tmp_path, monkeypatch):
    monkeypatch.setattr(sample_files, "SCAN_INTERVAL_SECONDS", 0.2)
    (tmp_path / "out").mkdir()
    first = served(samples_dir=str(tmp_path / "out"))
    turns(first, lambda: not first.files.files._is_first_scan)
    verl(tmp_path / "out", 7, size=2)
    turns(first, lambda: len(first.processor.samples.newest()) >= 2)
    assert [told["completion"] for told in first.processor.samples.newest()] == ["a0", "a1"]
    first.connection.close()
    first.registration.withdraw()

    second = served(samples_dir=str(tmp_path / "out"))
    verl(tmp_path / "out", 8, size=1)
    turns(second, lambda: len(second.processor.samples.newest()) >= 3)

    told = [(told["step"], told["rewards"]) for told in second.processor.samples.newest()]
    assert told == [(7, {"": 0.0}), (7, {"": 0.5}), (8, {"": 0.0})]
