"""Thresholds of detectors are stored when they change, and stay bounded."""

from contextlib import closing
from dataclasses import replace

import pytest

from sentinel.config.settings import Settings
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.engine import Result, Threshold
from sentinel.pipeline.pipeline import build
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.store.thresholds import ThresholdStore, read_thresholds

RECORD = Record("run", WHOLE_RUN, 1, 100.0, Event.STEP)


@pytest.fixture
def connection(tmp_path):
    with closing(connect(tmp_path / "sentinel.db")) as connection:
        yield connection


def stored(connection, signal="kl_ref", detector="kl_blowup"):
    rows = read_thresholds(connection, {signal}).get(signal, {}).get(detector, [])
    return [value for *_, value in rows]


def store(history, *values, attempt=0):
    for step, value in enumerate(values, start=1):
        record = replace(RECORD, step=step, time=100.0 + step, attempt=attempt)
        thresholds = {"kl_blowup": Threshold("kl_ref", value)}
        history.update(Result(record, thresholds=thresholds))


def test_a_threshold_is_stored_when_it_changes_by_more_than_one_percent(connection):
    store(History(connection), 1.0, 1.005, 1.009, 1.02, 1.02, float("inf"), 0.5)

    assert stored(connection) == [1.0, 1.02, 0.5]


def test_an_agent_that_continues_stores_no_threshold_twice(connection):
    store(History(connection), 1.0)
    store(History(connection), 1.0, 1.5)

    assert stored(connection) == [1.0, 1.5]


def test_a_new_attempt_begins_with_its_own_threshold(connection):
    history = History(connection)
    store(history, 1.0)
    store(history, 1.0, attempt=1)

    rows = read_thresholds(connection, {"kl_ref"})["kl_ref"]["kl_blowup"]
    assert [(step, attempt) for step, _, attempt, _ in rows] == [(1, 0), (1, 1)]


def test_records_that_are_read_again_replace_their_thresholds(connection):
    history = History(connection)
    store(history, 1.0, 2.0, 3.0)
    history.delete_since(102.0)
    assert stored(connection) == [1.0]

    store(history, 1.0, 2.0, 3.0)
    assert stored(connection) == [1.0, 2.0, 3.0]


def test_the_number_of_rows_is_bounded_and_the_newest_remain(connection):
    history = ThresholdStore(connection, max_rows=100)
    for step in range(1000):
        record = replace(RECORD, step=step)
        history.update(record, {"kl_blowup": Threshold("kl_ref", 1.1**step)})

    values = stored(connection)
    assert len(values) <= 101
    assert values == sorted(values)
    assert values[-40:] == [1.1**step for step in range(960, 1000)]
    assert values[0] == 1.0


def test_the_detectors_of_a_run_state_their_thresholds(connection):
    pipeline = build(Settings(), Counters())
    history = History(connection)
    for step in range(1, 200):
        record = replace(
            RECORD, step=step, time=100.0 + step, values={"kl_ref": 0.01 + step * 1e-5}
        )
        for result in pipeline.process(record):
            history.update(result)

    assert stored(connection)
