"""Tests of the thinning and the cap of a run's history."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from dataclasses import replace
from math import inf, nan

import pytest
from support.results import incident_result, make_incident, make_result, step_result

from sentinel.model.finding import Finding
from sentinel.model.record import Event
from sentinel.store import retention
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.store.media import MediaStore
from sentinel.store.retention import DETAIL_STEPS, HistoryRetention
from sentinel.store.series.summary import Summary

FULL_STEPS = 1000
LARGE = 1 << 40


class Clock:
    """A clock that advances by `step` seconds per look."""

    def __init__(self, step=0.0):
        self.now, self.step = 0.0, step

    def __call__(self):
        self.now += self.step
        return self.now


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sentinel.db"


@pytest.fixture
def history(path):
    with closing(connect(path)) as connection:
        yield History(connection)


def fill(history, steps, first=0, **values):
    """One record per step; the loss is the step."""
    history.connection.execute("begin")
    for step in range(first, first + steps):
        history.update(step_result(step, **({"loss": float(step), "reward": 1.0} | values)))
    history.connection.execute("commit")


def make_retention(history, clock=None, max_bytes=LARGE, **limits):
    return HistoryRetention(history, FULL_STEPS, max_bytes, clock or Clock(), **limits)


def thin(history, **options):
    """Thin everything that is due."""
    thinner = make_retention(history, **options)
    while thinner.run_slice(inf):
        pass
    return thinner


def count(history, table):
    return history.connection.execute(f"select count(*) from {table}").fetchone()[0]


@pytest.mark.fault("S9")
def test_the_newest_steps_stay_in_full_and_older_ones_become_blocks(history):
    fill(history, 3000)
    thin(history)

    assert FULL_STEPS <= count(history, "step") < FULL_STEPS + 32
    blocks = list(history.blocks())
    assert sum(block.count for block in blocks) + count(history, "step") == 3000
    first = blocks[0]
    assert (first.first_step, first.step, first.count) == (0, 31, 32)
    loss = first.signals["loss"]
    assert (loss.summary, loss.last) == (Summary(32, 15.5, 0.0, 31.0), 31.0)


def test_records_are_read_in_order_from_blocks_and_rows(history):
    fill(history, 2500)
    thin(history)
    records = list(history.records("run"))

    steps = [record.step for record in records]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (31, 2499)
    assert records[0].values == {"loss": 15.5, "reward": 1.0}
    assert history.latest_records("run")[-1].step == 2499


def test_a_thinned_history_stays_small_however_long_the_run(history):
    """Blocks of one level are limited, and the oldest merge to coarser ones."""
    thinner = make_retention(history, max_blocks_per_level=20)
    for chunk in range(12):
        fill(history, 1000, first=1000 * chunk)
        thinner._idle_until = 0.0
        while thinner.run_slice(inf):
            pass
    levels = dict(history.connection.execute("select level, count(*) from block group by level"))

    assert levels[1] <= 20
    assert levels[2] <= 20
    assert max(levels) >= 2
    assert sum(block.count for block in history.blocks()) + count(history, "step") == 12_000
    oldest = next(iter(history.blocks()))
    assert oldest.count == 32 * 8 * 8
    assert oldest.signals["loss"].summary.max == oldest.count - 1


def test_starts_saves_evaluations_and_ends_are_kept(history):
    history.update(make_result(Event.START, 0))
    fill(history, 500)
    history.update(make_result(Event.SAVE, 500, attributes={"path": "/ckpt"}))
    history.update(make_result(Event.EVAL, 500, values={"eval_loss": 2.0}))
    fill(history, 2000, first=501)
    thin(history)
    kept = [record for record in history.records("run") if record.event is not Event.STEP]

    assert [record.event for record in kept] == [Event.START, Event.SAVE, Event.EVAL]
    assert kept[1].attributes == {"path": "/ckpt"}


def test_steps_around_an_incident_are_kept(history):
    fill(history, 300)
    incident = replace(
        make_incident(),
        onset_step=140,
        onset_range=(130, 145),
        opened_step=160,
        resolved_step=600,
        resolved_time=9.0,
    )
    history.update(incident_result(of=incident))
    fill(history, 2500, first=300)
    thin(history)
    kept = {record.step for _, record in history.rows()}

    assert kept >= {*range(130 - DETAIL_STEPS, 160 + DETAIL_STEPS + 1)}
    assert kept >= {*range(600 - DETAIL_STEPS, 600 + DETAIL_STEPS + 1)}
    assert kept.isdisjoint(range(160 + DETAIL_STEPS + 1, 600 - DETAIL_STEPS))


def test_evidence_that_is_no_number_hides_no_dates(history):
    fill(history, 1000)
    incident = replace(
        make_incident(), onset_step=300, onset_range=(100, 310), opened_step=310,
        finding=Finding("NaN.", {"loss": nan, "grad_norm": inf}),
    )  # fmt: skip
    history.update(incident_result(of=incident))
    history.update(incident_result(of=replace(incident, episode=2, onset_step=800)))
    history.connection.execute("update incident set body = '{\"a\": NaN}' where onset_step = 800")
    fill(history, 2000, first=1000)
    thin(history)

    assert {record.step for _, record in history.rows()} >= {100, 300, 800}


def test_events_and_attempts_are_not_mixed(history):
    for step in range(1500):
        event = Event.HEARTBEAT if step % 2 else Event.STEP
        values = {"host_cpu": 0.5} if event is Event.HEARTBEAT else {"loss": 1.0}
        history.update(make_result(event, step, values=values, attempt=step // 20))
    thin(history)
    blocks = list(history.blocks())

    assert {(block.event, *block.signals) for block in blocks} == {
        (Event.STEP, "loss"),
        (Event.HEARTBEAT, "host_cpu"),
    }
    assert all(block.attempt == block.step // 20 for block in blocks)
    assert all(block.attempt == block.first_step // 20 for block in blocks)


def test_trainings_are_not_mixed(history):
    for step in range(1500):
        if step and step % 100 == 0:
            values = {"training_number": 1.0 + step // 100}
            history.update(make_result(Event.TRAINING, step, values=values))
        history.update(step_result(step, loss=float(step // 100)))
    thin(history)
    means = [
        block.signals["loss"].summary for block in history.blocks() if block.event is Event.STEP
    ]

    assert means
    assert all(each.min == each.max for each in means)


def test_values_that_are_not_finite_are_left_out_of_the_mean(history):
    for step in range(2000):
        loss = {0: nan, 1: inf}.get(step % 4, 1e308)
        history.update(step_result(step, loss=loss, reward=nan))
    thin(history)
    block = next(iter(history.blocks()))

    assert block.signals["loss"].summary.number == 16
    assert block.signals["loss"].summary.mean == pytest.approx(1e308)
    assert (block.signals["reward"].summary.number, block.count) == (0, 32)


def test_one_slice_does_not_hold_the_loop(history):
    """It stops after the piece of work in which its time is over, and continues later."""
    fill(history, 3000)
    thinner = make_retention(history, Clock(step=0.06))

    assert thinner.run_slice()
    assert count(history, "block") == 1
    assert thinner.run_slice()
    assert count(history, "block") == 2


def test_without_work_there_is_one_look_a_second(history):
    thinner = make_retention(history)
    assert not thinner.run_slice()
    fill(history, 3000)
    assert not thinner.run_slice()
    assert not count(history, "block")

    thinner.monotonic.now = 2.0
    assert not thinner.run_slice(inf)
    assert count(history, "block")


def test_the_next_agent_continues_where_the_last_one_stopped(history):
    fill(history, 3000)
    make_retention(history, Clock(step=0.02)).run_slice()
    thin(history)

    assert sum(block.count for block in history.blocks()) + count(history, "step") == 3000
    assert len({block.first_id for block in history.blocks()}) == count(history, "block")


def test_a_failed_slice_is_repeated(history, monkeypatch):
    fill(history, 3000)
    thinner = make_retention(history)

    def fail(*_):
        raise sqlite3.OperationalError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(history.layouts, "delete_unused", fail)
        with pytest.raises(sqlite3.OperationalError):
            thinner.run_slice(inf)
    assert not count(history, "block")
    thinner.run_slice(inf)
    assert sum(block.count for block in history.blocks()) + count(history, "step") == 3000


@pytest.mark.fault("S9")
def test_above_the_cap_the_oldest_are_thinned_then_deleted(history, path):
    """Rows that nothing thins, such as evaluations of every step, do not defeat the cap."""
    randomness = random.Random(5)
    history.update(make_result(Event.START, 0))
    history.connection.execute("begin")
    for step in range(6000):
        values = {f"signal_{n}": randomness.random() for n in range(20)}
        history.update(make_result(Event.EVAL, step, values=values))
    history.connection.execute("commit")
    thinner = make_retention(history, max_bytes=500_000, min_full_steps=1000)
    thinner.finish(60.0)

    assert thinner._used_bytes() <= 500_000
    kept = [record.step for record in history.records("run")]
    assert kept[0] == 0
    assert kept[-1000:] == [*range(5000, 6000)]
    history.connection.execute("pragma wal_checkpoint(truncate)")
    assert path.stat().st_size <= 600_000


def test_above_the_cap_fewer_steps_are_kept_in_full(history):
    fill(history, 3000, **{f"signal_{n}": float(n) for n in range(20)})
    wide = HistoryRetention(history, 2500, LARGE, Clock())
    wide.run_slice(inf)
    assert count(history, "step") >= 2500

    narrow = HistoryRetention(history, 2500, 420_000, Clock(), min_full_steps=500)
    narrow.run_slice(inf)
    assert 500 <= count(history, "step") < 2500
    assert narrow._used_bytes() <= 420_000
    assert next(iter(history.blocks())).first_step == 0


def test_free_pages_return_to_the_disk(history, path, monkeypatch):
    monkeypatch.setattr(retention, "MAX_FREE_PAGES", 16)
    fill(history, 8000, **{f"signal_{n}": float(n) for n in range(20)})
    history.connection.execute("pragma wal_checkpoint(truncate)")
    before = path.stat().st_size
    make_retention(history).finish(60.0)
    history.connection.execute("pragma wal_checkpoint(truncate)")

    assert path.stat().st_size < before / 2
    assert history.connection.execute("pragma freelist_count").fetchone() == (0,)
    assert history.connection.execute("pragma integrity_check").fetchone() == ("ok",)


def test_layouts_that_no_row_uses_are_deleted(history):
    for step in range(2500):
        history.update(make_result(step=step, values={"loss": 1.0}, attributes={"note": str(step)}))
    thin(history)

    assert count(history, "layout") <= count(history, "step") + 1


def test_a_file_above_its_cap_loses_media_at_last(history):
    media = MediaStore(history.connection)
    for step in range(200):
        media.add("weights", step, 0.0, "histogram", "application/json", body=4096 * b"1")

    thin(history, max_bytes=500_000)

    steps = [step for (step,) in history.connection.execute("select step from media order by id")]
    assert 0 < len(steps) < 150
    assert steps[-1] == 199
