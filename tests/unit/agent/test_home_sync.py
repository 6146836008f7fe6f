"""The copies of a run directory to the home directory."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from contextlib import closing
from time import monotonic

import pytest
from support.insight_results import surface
from support.rank_processes import until

from sentinel.agent import home_sync
from sentinel.agent.home_sync import HomeSync
from sentinel.model.record import Record
from sentinel.store import database
from sentinel.store.artifact import list_artifacts, save_artifact
from sentinel.store.history import History
from sentinel.store.relocation import replace_with_nothing
from sentinel.store.retention import HistoryRetention
from sentinel.transport.paths import DATABASE_NAME


def start_sync(source, home, on_copied=lambda *_: None):
    sync = HomeSync(source, lambda: home, on_copied, replace_with_nothing, retention)
    sync.start()
    return sync


def retention(history: History) -> HistoryRetention:
    return HistoryRetention(history, 1000, 1e9)


@pytest.mark.parametrize("error", [OSError("full"), RuntimeError("unexpected")])
def test_a_copy_that_failed_is_no_last_copy(tmp_path, error):
    """The agent deletes what is in shared memory after the last copy."""
    source, home = tmp_path / "shm", tmp_path / "home"
    source.mkdir()
    home.mkdir()
    database.connect(source / DATABASE_NAME).close()

    def fail(*_):
        raise error

    sync = start_sync(source, home, fail)
    assert not sync.finish(60.0)
    assert sync.problem.error is error
    assert not sync.is_hanging


def test_a_copy_that_takes_two_minutes_hangs(tmp_path, monkeypatch):
    reached, answers = threading.Event(), threading.Event()

    def wait(*_):
        reached.set()
        assert answers.wait(60.0)

    database.connect(tmp_path / DATABASE_NAME).close()
    (tmp_path / "home").mkdir()
    sync = start_sync(tmp_path, tmp_path / "home", wait)
    assert reached.wait(60.0)
    began_at = monotonic()
    for seconds, is_hanging in ((118.0, False), (121.0, True)):
        with monkeypatch.context() as patched:
            patched.setattr(home_sync, "monotonic", lambda now=began_at + seconds: now)
            assert sync.is_hanging is is_hanging
    answers.set()
    assert sync.finish(60.0)


def test_what_a_full_disk_lacks_is_found_in_the_thread_that_may_wait(tmp_path, monkeypatch):
    """The disk does not answer how much is free."""
    answers, callers = threading.Event(), []

    def wait(_):
        callers.append(threading.current_thread())
        assert answers.wait(60.0)
        raise OSError(errno.EIO, "Input/output error")

    def fill(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "home").mkdir()
    monkeypatch.setattr(os, "statvfs", wait)
    sync = start_sync(tmp_path, tmp_path / "home", fill)
    until(lambda: callers, 60.0, "the free space is read")
    assert sync.problem is None
    monkeypatch.setattr(home_sync, "HANG_SECONDS", 0.0)
    assert sync.is_hanging
    answers.set()
    assert not sync.finish(60.0)
    assert set(callers) == {sync}
    assert sync.problem.reason.endswith("has no space free")


def test_results_of_insight_are_copied(tmp_path):
    source, home = tmp_path / "shm", tmp_path / "home"
    source.mkdir()
    home.mkdir()
    save_artifact(source, surface(3, size=5))
    sync = start_sync(source, home)

    assert sync.finish(60.0)
    assert [each["id"] for each in list_artifacts(home)] == ["loss_surface-3"]


def test_a_reader_of_the_copy_is_no_fault_of_the_disk(tmp_path, monkeypatch):
    """A replay of the copy may take minutes."""
    monkeypatch.setattr(database, "MAX_WAIT_SECONDS", 0.1)
    source, home = tmp_path / "shm", tmp_path / "home"
    source.mkdir()
    home.mkdir()
    database.connect(source / DATABASE_NAME).close()
    sync = start_sync(source, home)
    until(lambda: sync.is_usable, 60.0, "the first copy")
    with closing(sqlite3.connect(home / DATABASE_NAME, isolation_level=None)) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from step").fetchone()
        with closing(database.connect(source / DATABASE_NAME)) as connection:
            History(connection)._insert_record(Record("run", -1, 1, 1.0, values={"loss": 1.0}))
        sync.wake()
        until(lambda: not sync.is_usable, 60.0, "a copy that failed")
        assert sync.problem is None

    assert sync.finish(60.0)
