"""Baselines of healthy runs: stored, used by alike runs, and harmless if damaged."""

import fcntl
import json
from dataclasses import replace

import numpy as np
import pytest

from sentinel.config.settings import Settings
from sentinel.model.record import Event
from sentinel.pipeline.engine import Engine
from sentinel.pipeline.pipeline import build
from sentinel.stats.baseline import TrajectoryPrior
from sentinel.store.baselines import (
    BaselineMemory,
    BaselineStore,
    StoredRun,
    baseline_id,
    configuration_of,
)
from sentinel.testing import steps

METADATA = {"script": "train.py", "host": "node-1", "seed": 3.0, "beta": 0.04}


def run_records(seed, name, *, blowup_at=None, outcome="finished"):
    rng = np.random.default_rng(seed)
    rate = np.full(300, 1e-6)
    kl = 0.1 * np.linspace(0.01, 1, 300) ** 1.5 * np.exp(0.3 * rng.standard_normal(300))
    if blowup_at is not None:
        kl = kl * np.exp(np.maximum(np.arange(300) - blowup_at, 0) * 0.1)
    records = list(steps(kl_ref=kl.tolist(), learning_rate=rate.tolist()))
    texts = {key: value for key, value in METADATA.items() if isinstance(value, str)}
    numbers = {key: value for key, value in METADATA.items() if not isinstance(value, str)}
    start = replace(records[0], event=Event.START, step=0, attributes=texts, values=numbers)
    stop = replace(records[-1], event=Event.STOP, attributes={"outcome": outcome}, values={})
    return [replace(record, run=name) for record in (start, *records, stop)]


def run_with_memory(directory, name, **options):
    pipeline = build(Settings(sinks={}))
    memory = BaselineMemory(name, pipeline.engine, BaselineStore(directory))
    opened = []
    for record in run_records(name=name, **options):
        result = pipeline.engine.process(record)
        memory.update(result)
        opened += [each.incident for each in result.notifications]
    return memory, opened


def test_a_healthy_run_is_stored_and_used_by_the_next_one(tmp_path):
    run_with_memory(tmp_path, "first", seed=1)
    memory, _ = run_with_memory(tmp_path, "second", seed=2)
    assert set(memory.engine.priors["second"]) == {"kl_ref"}
    (stored,) = BaselineStore(tmp_path).load_all()
    assert [run.run for run in stored.runs] == ["first", "second"]
    assert stored.configuration == {"beta": 0.04, "script": "train.py"}


@pytest.mark.parametrize("options", [{"outcome": "failed"}, {"blowup_at": 150}])
def test_a_run_that_failed_or_had_an_alarm_is_not_stored(tmp_path, options):
    run_with_memory(tmp_path, "first", seed=1, **options)
    assert BaselineStore(tmp_path).load_all() == []


def test_a_run_with_another_configuration_starts_without(tmp_path, monkeypatch):
    run_with_memory(tmp_path, "first", seed=1)
    monkeypatch.setitem(METADATA, "beta", 0.1)
    memory, _ = run_with_memory(tmp_path, "second", seed=2)
    assert memory.engine.priors == {}


def test_seed_and_host_are_not_part_of_the_configuration():
    assert configuration_of(METADATA) == configuration_of(METADATA | {"seed": 4.0, "host": "b"})


def test_settings_without_a_project_are_no_configuration():
    assert configuration_of({"beta": 0.04}) == {}


def test_alike_runs_are_found_by_numbers_however_they_are_written():
    assert baseline_id({"script": "t", "beta": 1}) == baseline_id({"script": "t", "beta": 1.0})


def test_a_known_trajectory_shows_a_fault_no_later(tmp_path):
    def opened_step(opened):
        return next(each.opened_step for each in opened if each.key.detector == "kl_blowup")

    _, without = run_with_memory(tmp_path / "none", "faulty", seed=9, blowup_at=150)
    for seed in range(4):
        run_with_memory(tmp_path / "memory", f"run{seed}", seed=seed)
    _, with_memory = run_with_memory(tmp_path / "memory", "faulty", seed=9, blowup_at=150)
    assert opened_step(with_memory) <= opened_step(without)


DAMAGED_RUN = '{"schema": 1, "configuration": {}, "runs": [{"run": "r", "signals": {}, %s}]}'
DAMAGED = (
    "",
    "[]",
    "{",
    "[" * 100_000,
    '{"schema": 2}',
    '{"schema": 1, "configuration": {}, "runs": [{}]}',
    DAMAGED_RUN % '"time": 0, "last_step": Infinity',
    DAMAGED_RUN % '"time": NaN, "last_step": 1',
    DAMAGED_RUN % '"time": 1e300, "last_step": 1',
)


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_counts_as_none_and_is_replaced(tmp_path, text):
    name = baseline_id(configuration_of(METADATA))
    (tmp_path / f"{name}.json").write_text(text)
    memory, _ = run_with_memory(tmp_path, "first", seed=1)
    assert memory.engine.priors == {}
    assert [run.run for run in BaselineStore(tmp_path).load(name).runs] == ["first"]


@pytest.mark.parametrize(
    "poison",
    [
        {"sigma": 1e9},
        {"sigma": float("nan")},
        {"course": [[0.0, 1e300], [1.0, 1.0]]},
        {"course": [[1.0, 1.0], [0.0, 1.0]]},
        {"course": [[0.0, 1.0], [1e300, 1.0]]},
        {"course": [[0.0, 1.0], [1e-300, 2.0]]},
        {"weight": 1e12},
    ],
)
def test_implausible_trajectories_are_left_out(tmp_path, poison):
    run_with_memory(tmp_path, "first", seed=1)
    (path,) = tmp_path.glob("*.json")
    body = json.loads(path.read_text())
    body["runs"][0]["signals"]["kl_ref"] |= poison
    path.write_text(json.dumps(body))
    memory, _ = run_with_memory(tmp_path, "second", seed=2)
    assert memory.engine.priors["second"] == {}


def test_the_newest_runs_are_kept(tmp_path):
    store, configuration = BaselineStore(tmp_path), {"script": "train.py"}
    prior = TrajectoryPrior(sigma=0.3, weight=64.0, course=((0.0, 0.0), (1.0, 1.0)))
    for number in range(12):
        store.add(configuration, StoredRun(f"run{number}", float(number), 9, {"kl_ref": prior}))
    assert [run.run for run in store.load_all()[0].runs] == [f"run{n}" for n in range(4, 12)]


def test_an_agent_that_starts_again_uses_the_baseline_the_run_began_with(tmp_path):
    run_with_memory(tmp_path / "store", "first", seed=1)
    used, engine = tmp_path / "baseline.json", Engine({})
    memory = BaselineMemory("second", engine, BaselineStore(tmp_path / "store"), used=used)
    pipeline = build(Settings(sinks={}))
    memory.update(pipeline.engine.process(run_records(2, "second")[0]))
    run_with_memory(tmp_path / "store", "third", seed=3)
    restored = BaselineMemory("second", Engine({}), BaselineStore(tmp_path / "store"), used=used)
    restored.restore()
    assert restored.engine.priors == engine.priors


def run_into_another(event, directory, used, **metadata):
    """A run whose second training or stage begins, with the metadata that it then states."""
    pipeline = build(Settings(sinks={}))
    memory = BaselineMemory("second", pipeline.engine, BaselineStore(directory), used=used)
    *first, stop = run_records(2, "second")
    begins = replace(stop, event=event, attributes={}, values={"training_number": 2.0})
    stated = replace(begins, event=Event.METADATA, values=metadata)
    for record in (*first, begins, stated):
        memory.update(pipeline.engine.process(record))
    return memory


def restored_priors(directory, used):
    memory = BaselineMemory("second", Engine({}), BaselineStore(directory), used=used)
    memory.restore()
    return memory.engine.priors


@pytest.mark.parametrize("event", [Event.TRAINING, Event.STAGE])
@pytest.mark.parametrize("metadata", [{"beta": 0.1}, {"highest_group_learning_rate": 1e-3}])
def test_another_training_does_not_start_from_the_baseline_of_the_first(tmp_path, event, metadata):
    """Neither with other settings nor if it states none, and also after a restart of the agent."""
    run_with_memory(tmp_path / "store", "first", seed=1)
    used = tmp_path / "baseline.json"
    memory = run_into_another(event, tmp_path / "store", used, **metadata)
    assert memory.engine.priors == {}
    assert restored_priors(tmp_path / "store", used) == {}


def test_another_training_starts_from_the_baseline_of_its_own_settings(tmp_path, monkeypatch):
    run_with_memory(tmp_path / "store", "first", seed=1)
    with monkeypatch.context() as patch:
        patch.setitem(METADATA, "beta", 0.1)
        run_with_memory(tmp_path / "store", "other", seed=5)
        other = baseline_id(configuration_of(METADATA))
    used = tmp_path / "baseline.json"
    memory = run_into_another(Event.TRAINING, tmp_path / "store", used, beta=0.1)
    expected = {"second": BaselineStore(tmp_path / "store").load(other).pooled_priors()}
    assert memory.engine.priors == expected
    assert restored_priors(tmp_path / "store", used) == expected


def test_a_baseline_that_cannot_be_deleted_is_not_used_for_another_training(tmp_path):
    run_with_memory(tmp_path / "store", "first", seed=1)
    used = tmp_path / "baseline.json"
    used.mkdir()
    memory = run_into_another(Event.TRAINING, tmp_path / "store", used, beta=0.1)
    assert memory.engine.priors == {}


def test_a_run_with_an_alarm_that_has_not_fired_yet_is_not_stored(tmp_path):
    pipeline = build(Settings(sinks={}))
    pipeline.engine.incident_book.findings_to_fire = 1_000
    memory = BaselineMemory("first", pipeline.engine, BaselineStore(tmp_path))
    for record in run_records(1, "first", blowup_at=150):
        memory.update(pipeline.engine.process(record))
    assert memory.is_healthy
    assert BaselineStore(tmp_path).load_all() == []


def test_a_lock_that_another_process_holds_is_an_error_not_a_wait(tmp_path, monkeypatch):
    monkeypatch.setattr("sentinel.store.baselines.LOCK_ATTEMPTS", 2)
    prior = TrajectoryPrior(sigma=0.3, weight=64.0, course=((0.0, 0.0), (1.0, 1.0)))
    run = StoredRun("run", 0.0, 9, {"kl_ref": prior})
    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            BaselineStore(tmp_path).add({"script": "train.py"}, run)
