"""Same log, same incidents: however it grew, and however often its reader was killed meanwhile."""

from __future__ import annotations

import json
from dataclasses import replace
from math import nan
from random import Random

import pytest
from support.log_files import FORMATS, healthy_rows

from sentinel.config.plugins import load_classes
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.pipeline import Pipeline
from sentinel.readers.follow import LogFollower
from sentinel.readers.format_detection import open_log

DETECTORS = load_classes("detectors")
NOW = 1.9e9


def sick_rows(seed):
    """A run in which much goes wrong, some of it for good."""
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


def fold():
    return Pipeline(DETECTORS, Counters())


def pages(folded, records):
    """What people are told because of these records; nobody speaks in a log, so no ticks."""
    told = [
        page
        for record in records
        if record.event is not Event.HEARTBEAT
        for verdict in folded.process(record)
        for page in verdict.pages
    ]
    return [
        (
            page.step,
            page.reason.value,
            page.incident.key.detector,
            page.incident.severity.value,
            page.incident.opened_step,
            page.incident.onset_step,
            page.incident.episode,
            page.incident.finding.summary,
        )
        for page in told
    ]


def handed_over(folded):
    """The next agent's fold, with the memory of this one."""
    text = folded.serialize()
    assert text is not None
    after = fold()
    after.restore(text)
    assert after.serialize() == text
    return after


def pieces(whole, random, count):
    """Bytes in pieces, most of which end within a row."""
    cuts = sorted(random.sample(range(1, len(whole)), count))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


@pytest.mark.parametrize(("killed", "seed"), [(False, 0), (True, 1)], ids=["watched", "killed"])
@pytest.mark.parametrize("kind", ["jsonl", "verl", "table", "tensorboard", "wandb"])
def test_however_a_log_grows_it_is_judged_as_it_is_at_once(tmp_path, kind, seed, killed):
    random = Random(seed)
    path = FORMATS[kind](tmp_path, sick_rows(seed))
    whole = path.read_bytes()
    at_once = pages(fold(), open_log(path))
    assert len(at_once) > 5

    path.write_bytes(b"")
    clock = [NOW]
    source = LogFollower("mine", path, Counters(), {}, lambda: clock[0])
    folded, told = fold(), []
    for piece in pieces(whole, random, 25):
        with path.open("ab") as file:
            file.write(piece)
        if len(whole) > path.stat().st_size < 200:
            # Of so little it cannot be told what it is.
            continue
        told += pages(folded, source.poll())
        if killed and random.random() < 0.3:
            source = LogFollower("mine", path, Counters(), source.positions(), lambda: clock[0])
            folded = handed_over(folded)
    told += pages(folded, source.poll())
    clock[0] += 10.0
    assert told + pages(folded, source.poll()) == at_once


@pytest.mark.parametrize(("killed", "seed"), [(False, 2), (True, 3)], ids=["watched", "killed"])
def test_however_a_trainer_state_grows_it_is_judged_as_it_is_at_once(tmp_path, seed, killed):
    random, rows = Random(seed), sick_rows(seed)
    path = FORMATS["trainer_state"](tmp_path, rows)
    at_once = pages(fold(), open_log(path))
    source = LogFollower("mine", path, Counters(), {}, lambda: NOW)
    folded, told = fold(), []
    for upto in [*sorted(random.sample(range(1, len(rows)), 10)), len(rows)]:
        path.write_text(json.dumps({"log_history": rows[:upto], "max_steps": 10**6}))
        told += pages(folded, source.poll())
        if killed and random.random() < 0.3:
            source = LogFollower("mine", path, Counters(), source.positions(), lambda: NOW)
            folded = handed_over(folded)
    assert told == at_once


def of_ranks(rows, random):
    """The same rows as two ranks tell them, with the ticks of an agent between."""
    start = {"world_size": 2.0, "local_world_size": 2.0}
    for rank in (0, 1):
        yield Record("mine", rank, 0, rows[0]["time"] - 1.0, Event.START, start)
    for row in rows:
        values = {name: x for name, x in row.items() if name not in ("step", "time")}
        for rank in random.sample((0, 1), 2):
            own = {name: x * (1 + 0.01 * rank) for name, x in values.items()}
            own |= {"step_time": 3.0, "global_step": float(row["step"])}
            at = row["time"] + 0.1 * rank
            yield Record("mine", rank, row["step"], at, Event.STEP, own, step_index=row["step"])
        if row["step"] % 50 == 0:
            yield Record("mine", 0, row["step"], row["time"], Event.SAVE, step_index=row["step"])
        running = {"ranks_running": 2.0, "ranks_gone": 0.0, "ranks_failed": 0.0}
        tick = Record("mine", WHOLE_RUN, row["step"], row["time"] + 0.5, Event.HEARTBEAT)
        yield replace(tick, values={**running, "idle_seconds": 0.4}, step_index=row["step"])


def verdicts(folded, record):
    """All that is concluded from a record, to the last digit."""
    return [
        (verdict.record, dict(verdict.findings), verdict.pages, verdict.last_arrival_at)
        for verdict in folded.process(record)
    ]


@pytest.mark.parametrize("seed", range(2))
def test_killed_and_resumed_is_uninterrupted_with_all_detectors(seed):
    random = Random(seed)
    records = list(of_ranks(sick_rows(seed), random))
    places = set(random.sample(range(len(records)), 12))
    whole, broken = fold(), fold()
    told = 0
    for at, record in enumerate(records):
        expected = verdicts(whole, record)
        assert repr(verdicts(broken, record)) == repr(expected)
        told += sum(len(pages) for _, _, pages, _ in expected)
        if at in places:
            broken = handed_over(broken)
    assert told > 5
    assert whole.serialize() == broken.serialize()
