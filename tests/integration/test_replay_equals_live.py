"""A replay finds the incidents that a live agent reports, even one that is killed and resumed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from math import inf, nan
from random import Random

import pytest
from support.log_files import FORMATS, healthy_rows
from support.rank_processes import ranks, until

from sentinel.agent.main import Agent
from sentinel.config.plugins import load_classes
from sentinel.config.settings import load_replay_settings, load_settings
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline import pipeline
from sentinel.pipeline.pipeline import Pipeline
from sentinel.pipeline.replay import replay_records
from sentinel.readers.follow import LogFollower
from sentinel.readers.format_detection import open_log
from sentinel.store.history import incident_to_dict
from sentinel.transport.paths import current_run_dir

DETECTORS = load_classes("detectors")
NOW = 1.9e9


def sick_rows(seed):
    """A run with many incidents, some of which never resolve."""
    random, rows = Random(seed), healthy_rows(4, 260)
    for row in rows:
        late = max(0, row["step"] - 130)
        row["kl"] *= min(2.0 ** (late / 8), 300.0)
        row["reward"] -= 0.02 * late
        row["entropy"] *= 0.97**late
        row["grad_norm"] = 0.5 + 0.1 * random.random() + (random.random() < 0.01) * 50.0
        if 90 <= row["step"] < 100:
            row["loss"] = nan
        if row["step"] % 40 == 0:
            row["eval/loss"] = 2.0 + row["step"] / 200
    return rows


def make_pipeline():
    return Pipeline(DETECTORS, Counters())


def notify(pipeline, records):
    """The notifications of these records; heartbeats are left out, since a log has none."""
    notifications = [
        notification
        for record in records
        if record.event is not Event.HEARTBEAT
        for result in pipeline.process(record)
        for notification in result.notifications
    ]
    return [
        (
            each.step,
            each.reason.value,
            each.incident.key.detector,
            each.incident.severity.value,
            each.incident.opened_step,
            each.incident.onset_step,
            each.incident.episode,
            each.incident.finding.summary,
        )
        for each in notifications
    ]


def resume(pipeline):
    """The pipeline of the next agent, which restores the state of this one."""
    text = pipeline.serialize()
    assert text is not None
    resumed = make_pipeline()
    resumed.restore(text)
    assert resumed.serialize() == text
    return resumed


def split(data, random, count):
    """The bytes in pieces, most of which end within a row."""
    cuts = sorted(random.sample(range(1, len(data)), count))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@pytest.mark.parametrize(("is_killed", "seed"), [(False, 0), (True, 1)], ids=["watched", "killed"])
@pytest.mark.parametrize("kind", ["jsonl", "verl", "table", "tensorboard", "wandb"])
def test_a_growing_log_gives_the_notifications_of_the_whole_log(tmp_path, kind, seed, is_killed):
    random = Random(seed)
    path = FORMATS[kind](tmp_path, sick_rows(seed))
    data = path.read_bytes()
    expected = notify(make_pipeline(), open_log(path))
    assert len(expected) > 5

    path.write_bytes(b"")
    clock = [NOW]
    source = LogFollower("mine", path, Counters(), {}, lambda: clock[0])
    pipeline, notifications = make_pipeline(), []
    for piece in split(data, random, 25):
        with path.open("ab") as file:
            file.write(piece)
        os.utime(path, (clock[0], clock[0]))
        if len(data) > path.stat().st_size < 200:
            # Too little to recognize the format.
            continue
        notifications += notify(pipeline, source.poll())
        if is_killed and random.random() < 0.3:
            source = LogFollower("mine", path, Counters(), source.positions(), lambda: clock[0])
            pipeline = resume(pipeline)
    notifications += notify(pipeline, source.poll())
    clock[0] += 10.0
    assert notifications + notify(pipeline, source.poll()) == expected


@pytest.mark.parametrize(("is_killed", "seed"), [(False, 2), (True, 3)], ids=["watched", "killed"])
def test_a_growing_trainer_state_gives_the_notifications_of_the_whole(tmp_path, seed, is_killed):
    random, rows = Random(seed), sick_rows(seed)
    path = FORMATS["trainer_state"](tmp_path, rows)
    expected = notify(make_pipeline(), open_log(path))
    source = LogFollower("mine", path, Counters(), {}, lambda: NOW)
    pipeline, notifications = make_pipeline(), []
    for length in [*sorted(random.sample(range(1, len(rows)), 10)), len(rows)]:
        path.write_text(json.dumps({"log_history": rows[:length], "max_steps": 10**6}))
        notifications += notify(pipeline, source.poll())
        if is_killed and random.random() < 0.3:
            source = LogFollower("mine", path, Counters(), source.positions(), lambda: NOW)
            pipeline = resume(pipeline)
    assert notifications == expected


def rank_records(rows, random):
    """The rows as records of two ranks, with the heartbeats of an agent between them."""
    start = {"world_size": 2.0, "local_world_size": 2.0}
    for rank in (0, 1):
        yield Record("mine", rank, 0, rows[0]["time"] - 1.0, Event.START, start)
    for row in rows:
        values = {name: x for name, x in row.items() if name not in ("step", "time")}
        for rank in random.sample((0, 1), 2):
            own = {name: x * (1 + 0.01 * rank) for name, x in values.items()}
            own |= {"step_time": 3.0, "global_step": float(row["step"])}
            time = row["time"] + 0.1 * rank
            yield Record("mine", rank, row["step"], time, Event.STEP, own, step_index=row["step"])
        if row["step"] % 50 == 0:
            yield Record("mine", 0, row["step"], row["time"], Event.SAVE, step_index=row["step"])
        running = {"ranks_running": 2.0, "ranks_gone": 0.0, "ranks_failed": 0.0}
        heartbeat = Record("mine", WHOLE_RUN, row["step"], row["time"] + 0.5, Event.HEARTBEAT)
        yield replace(heartbeat, values={**running, "idle_seconds": 0.4}, step_index=row["step"])


def all_results(pipeline, record):
    return [
        (result.record, dict(result.findings), result.notifications, result.case_notifications)
        for result in pipeline.process(record)
    ]


@pytest.mark.parametrize("seed", range(2))
def test_a_resumed_pipeline_gives_the_results_of_an_uninterrupted_one(seed):
    random = Random(seed)
    records = list(rank_records(sick_rows(seed), random))
    kills = set(random.sample(range(len(records)), 12))
    uninterrupted, resumed = make_pipeline(), make_pipeline()
    count = 0
    for index, record in enumerate(records):
        expected = all_results(uninterrupted, record)
        assert repr(all_results(resumed, record)) == repr(expected)
        count += sum(len(notifications) for _, _, notifications, _ in expected)
        if index in kills:
            resumed = resume(resumed)
    assert count > 5
    assert uninterrupted.serialize() == resumed.serialize()


COMPARED_FIELDS = (
    *("name", "state", "severity", "signal", "onset_step", "opened_step", "opened_time"),
    *("resolved_step", "resolved_time", "flaps", "last_good_step", "remedy"),
)


def serve_live_run(rows):
    """An agent that has read the rings of two ranks to their end, and dated every incident."""
    values = {name: [row[name] for row in rows] for name in rows[0] if name not in ("step", "time")}
    with ranks() as begin:
        for rank in (0, 1):
            begin(rank, world=2, steps=len(rows), values=values, ending="finished")
        agent = Agent("live", load_settings({"port": 0, "node_poll_seconds": 0}))
        outcome = current_run_dir("live") / "outcome.json"
        until(lambda: agent.run_once() or outcome.exists(), 240.0, "the run has ended")
        judged = agent.processor.pipeline
        until(lambda: agent.run_once() or not judged.undated_incidents, 240.0, "all are dated")
    return agent


def test_a_replay_of_a_live_run_finds_every_incident_that_the_agent_reported(tmp_path, monkeypatch):
    """The agent's journal holds the records that it read; the replay uses the same settings."""
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.chdir(tmp_path)
    # The journal is compared from its start.
    monkeypatch.setattr("sentinel.agent.main.SNAPSHOT_INTERVAL_SECONDS", inf)
    (tmp_path / "sentinel.toml").write_text("[detectors.kl_blowup]\nratio = 4\n")
    rows = [{name: row[name] for name in row if name != "eval/loss"} for row in sick_rows(0)]
    agent = serve_live_run(rows)
    try:
        entries = [*agent.processor.journal.entries_since_snapshot("live")]
        live = {incident["name"]: incident for incident in agent.processor.history.incidents()}
    finally:
        agent.stop_requested.set()
        agent.serve()
    replay = replay_records(entries, pipeline.build(load_replay_settings()))
    replayed = {each.incident.name: each for each in replay.incidents}
    causes = {case.incident.name: case.diagnosis for case in replay.cases}

    assert len(live) > 5
    assert replayed.keys() == live.keys()
    for name, reported in live.items():
        found = incident_to_dict(replayed[name].incident)
        assert {key: found[key] for key in COMPARED_FIELDS} == {
            key: reported[key] for key in COMPARED_FIELDS
        }
        assert replayed[name].case_name == reported["case"]
        if reported["case"] is not None and reported["diagnosis"] is not None:
            assert causes[reported["case"]].cause == reported["diagnosis"]["cause"]
