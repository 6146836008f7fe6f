"""Tests of the worker that estimates onsets in the background."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from dataclasses import replace

import pytest
from support.rank_processes import until
from support.results import NOW, make_incident, make_result, step_result

from sentinel.model.finding import Severity
from sentinel.model.incident import Onset
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import Event
from sentinel.pipeline.onset import RecentSignals, estimate_incident_onset
from sentinel.store.database import connect
from sentinel.store.history import History, load_onsets
from sentinel.store.onset_worker import OnsetWorker

TIMEOUT_SECONDS = 60.0
INCIDENT = replace(make_incident(), onset_step=122, opened_step=140, opened_time=NOW + 140)
VALUES = [0.1 + 0.01 * (step * 7 % 5) for step in range(120)] + [
    1.0 + 0.01 * (step % 3) for step in range(60)
]


@pytest.fixture
def path(tmp_path):
    """A history in which KL jumps at step 120; checkpoints every 50 steps."""
    path = tmp_path / "sentinel.db"
    with closing(connect(path)) as connection:
        history = History(connection)
        for step, value in enumerate(VALUES):
            history.update(step_result(step, kl_ref=value, loss=float("nan")))
            if step % 50 == 49:
                history.update(make_result(Event.SAVE, step))
    return path


@pytest.fixture
def onsets():
    return {}


@pytest.fixture
def worker(path, onsets):
    worker = OnsetWorker(path, estimate_incident_onset, onsets.__setitem__)
    yield worker
    worker.stop(TIMEOUT_SECONDS)


def opened_result(incident=INCIDENT, reason=NotificationReason.OPENED):
    return replace(step_result(140), notifications=(Notification(reason, incident, 140, NOW),))


def store(path, incident=INCIDENT):
    with closing(connect(path)) as connection:
        History(connection).update(opened_result(incident))


def test_the_onset_is_estimated_from_the_history_and_stored(path, worker, onsets):
    store(path)
    worker.update(opened_result())
    until(lambda: onsets, TIMEOUT_SECONDS, "onset estimated")

    assert onsets[INCIDENT.name].step == 120
    assert onsets[INCIDENT.name].last_good_step == 99
    with closing(connect(path)) as connection:
        assert load_onsets(connection) == onsets
        (shown,) = History(connection).incidents()
    assert shown["onset"]["step"] == 120


def test_records_after_the_opening_are_ignored(path, worker, onsets):
    """A live estimate equals that of a replay, however late the thread runs."""
    past = RecentSignals({"kl_ref"})
    for step, value in enumerate(VALUES[:141]):
        past.update(step_result(step, kl_ref=value).record)
        if step % 50 == 49:
            past.update(make_result(Event.SAVE, step).record)
    store(path)
    worker.update(opened_result())
    until(lambda: onsets, TIMEOUT_SECONDS, "onset estimated")

    assert onsets[INCIDENT.name] == past.estimate_onset(INCIDENT)


def test_the_worker_waits_until_the_incident_is_committed(path, worker, onsets):
    worker.update(opened_result())
    with closing(connect(path)) as connection:
        connection.execute("begin")
        History(connection).update(opened_result())
        assert not onsets
        connection.execute("commit")
    until(lambda: onsets, TIMEOUT_SECONDS, "onset estimated")


def test_a_restart_estimates_missing_onsets_and_reports_stored_ones(path, worker, onsets):
    store(path)
    worker.restore([INCIDENT])
    until(lambda: onsets, TIMEOUT_SECONDS, "onset estimated")

    reported = {}
    restarted = OnsetWorker(path, lambda *_: pytest.fail("estimated twice"), reported.__setitem__)
    restarted.restore([INCIDENT])
    assert reported == onsets


def test_info_and_resolved_incidents_start_no_thread(worker):
    # The thread of an earlier test may still be alive.
    before = threading.enumerate()
    worker.update(opened_result(replace(INCIDENT, severity=Severity.INFO)))
    worker.update(opened_result(reason=NotificationReason.RESOLVED))

    started = [thread for thread in threading.enumerate() if thread not in before]
    assert "onset-worker" not in [thread.name for thread in started]


@pytest.mark.swallows_errors
def test_a_failed_estimate_does_not_affect_the_next(path):
    other = replace(INCIDENT, key=replace(INCIDENT.key, detector="loss_plateau"))
    onsets = {}

    def estimate(incident, *_):
        if incident.key.detector == "kl_blowup":
            raise ValueError
        return Onset(1, 1, 1)

    worker = OnsetWorker(path, estimate, onsets.__setitem__)
    for each in (INCIDENT, other):
        store(path, each)
        worker.update(opened_result(each))
    until(lambda: onsets, TIMEOUT_SECONDS, "second onset estimated")
    worker.stop(TIMEOUT_SECONDS)

    assert onsets == {other.name: Onset(1, 1, 1)}


def test_no_estimate_begins_after_the_worker_was_stopped(path):
    """The next agent may have moved the database: a queued incident would create an empty one."""
    other = replace(INCIDENT, key=replace(INCIDENT.key, detector="loss_plateau"))
    estimating, cancelled, reported = threading.Event(), threading.Event(), []

    def estimate(*_):
        estimating.set()
        assert cancelled.wait(TIMEOUT_SECONDS)
        raise sqlite3.DatabaseError

    def cancel():
        for file in path.parent.glob("sentinel.db*"):
            file.unlink()
        cancelled.set()

    worker = OnsetWorker(path, estimate, lambda *_: None, reported.append, cancel)
    for each in (INCIDENT, other):
        store(path, each)
        worker.update(opened_result(each))
    assert estimating.wait(TIMEOUT_SECONDS)
    worker.stop(0.0)
    worker.stop(TIMEOUT_SECONDS)

    assert not path.exists()
    assert not reported
