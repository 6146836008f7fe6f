"""Tests of what becomes of a damaged database: set aside, replaced, and stated until deleted."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing

import pytest
from support.notifications import NOW
from support.rank_processes import until
from support.stored_runs import STEPS, sent_keys, write_run

from sentinel.model.counters import Counters
from sentinel.store import recovery, storage_keeper
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.store.recovery import MAX_SET_ASIDE, load_state, open_storage, set_aside_files
from sentinel.store.run_summary import make_summary, write_summary
from sentinel.store.storage_keeper import StorageKeeper
from sentinel.store.storage_monitor import (
    DamagedContentError,
    FailureKind,
    StorageFailure,
    StorageMonitor,
)


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "run" / "sentinel.db"
    found.parent.mkdir()
    write_run(found)
    return found


def reopen(path, storage, now=NOW):
    """Open after damage was reported; returns how many records are in the new database."""
    storage.report(DamagedContentError("a page is damaged"))
    with closing(open_storage(path, storage, Counters(), lambda: now)) as connection:
        return len(list(History(connection).records("run")))


def test_a_reported_damage_replaces_the_database_once(path):
    storage = StorageMonitor()
    assert reopen(path, storage) == STEPS
    with closing(open_storage(path, storage, Counters())) as connection:
        assert len(list(History(connection).records("run"))) == STEPS

    (damaged,) = set_aside_files(path)
    assert (storage.state.mode, storage.state.set_aside) == ("replaced", damaged.name)
    assert storage.state.recovered == "everything"
    assert storage.reads_again_until == 0.0


def test_the_write_ahead_log_stays_beside_the_file(path):
    with closing(connect(path)) as writer:
        writer.execute("insert into ack values('run/nan_or_inf#9', 'critical', 0.0, '', '')")
        assert reopen(path, StorageMonitor()) == STEPS
        (damaged,) = set_aside_files(path)
        assert damaged.with_name(f"{damaged.name}-wal").stat().st_size > 0
    with closing(connect(path)) as connection:
        rows = connection.execute("select incident from ack order by 1").fetchall()
    assert rows[-1] == ("run/nan_or_inf#9",)


def test_damage_soon_after_copies_less_each_time(path):
    """What is copied may be what is damaged, so that it would not end."""
    storage, sent = StorageMonitor(), sent_keys(path)

    assert [reopen(path, storage, NOW + second) for second in (0, 5, 10)] == [STEPS, 0, 0]
    assert [storage.state.number, storage.state.repeats] == [3, 2]
    first, second, third = set_aside_files(path)
    assert sent_keys(second) == sent_keys(third) == sent_keys(first) == sent
    assert sent_keys(path) == set()


def test_only_the_newest_damaged_files_are_kept(path):
    storage = StorageMonitor()
    for number in range(MAX_SET_ASIDE + 2):
        reopen(path, storage, NOW + 1000 * number)

    assert len(set_aside_files(path)) == MAX_SET_ASIDE
    assert storage.state.set_aside == set_aside_files(path)[-1].name
    assert storage.state.number == MAX_SET_ASIDE + 2


def test_another_agent_states_it_until_the_file_is_deleted(path):
    reopen(path, StorageMonitor())
    storage = StorageMonitor()
    open_storage(path, storage, Counters()).close()
    assert storage.state.mode == "replaced"

    set_aside_files(path)[0].unlink()
    StorageKeeper(path, storage)._forget_deleted()
    assert (storage.state.mode, storage.state.number, load_state(path).mode) == ("ok", 1, "ok")


def test_a_file_that_is_no_database_is_replaced(path):
    path.write_bytes(b"not a database at all" * 500)
    storage = StorageMonitor()
    open_storage(path, storage, Counters(), lambda: NOW).close()

    assert (storage.state.mode, storage.reads_again_until) == ("replaced", NOW)
    assert storage.state.recovered.startswith("nothing")


def test_a_disk_that_cannot_be_written_is_not_damage(path, monkeypatch):
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorname = "SQLITE_CANTOPEN"

    def fail(*_):
        raise error

    monkeypatch.setattr(recovery.database, "connect", fail)
    with pytest.raises(sqlite3.OperationalError):
        open_storage(path, StorageMonitor(), Counters())
    assert set_aside_files(path) == []


def damage_outbox(path):
    with closing(sqlite3.connect(path)) as connection:
        query = "select rootpage from sqlite_schema where name = 'outbox'"
        (root,) = connection.execute(query).fetchone()
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"damage" * 100)


def test_the_check_finds_a_damaged_page(path):
    StorageKeeper(path, StorageMonitor()).check()
    damage_outbox(path)

    with pytest.raises(sqlite3.DatabaseError):
        StorageKeeper(path, StorageMonitor()).check()


def test_damage_while_the_agent_runs_is_found(path, monkeypatch):
    monkeypatch.setattr(storage_keeper, "SYNC_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(storage_keeper, "CHECK_INTERVAL_SECONDS", 0.1)
    storage, checked = StorageMonitor(), threading.Event()
    keeper = StorageKeeper(path, storage)
    check = keeper.check
    monkeypatch.setattr(keeper, "check", lambda: (check(), checked.set()))
    keeper.start()
    assert checked.wait(240)
    storage.check()
    damage_outbox(path)
    failure = until(lambda: storage.pop_failure(FailureKind.DAMAGED), 240.0, "damage is found")
    keeper.stop()

    assert failure.kind is FailureKind.DAMAGED


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("SQLITE_CORRUPT", "damaged"),
        ("SQLITE_NOTADB", "damaged"),
        ("SQLITE_CORRUPT_VTAB", "damaged"),
        ("SQLITE_FULL", "unusable"),
        ("SQLITE_IOERR_WRITE", "unusable"),
        ("SQLITE_READONLY_DBMOVED", "unusable"),
        ("SQLITE_BUSY", None),
        ("SQLITE_LOCKED", None),
    ],
)
def test_errors_are_classified_by_their_name(name, kind):
    error = sqlite3.DatabaseError("text")
    error.sqlite_errorname = name
    storage = StorageMonitor()
    storage.report(error)

    if kind is None:
        storage.check()
    else:
        with pytest.raises(StorageFailure) as caught:
            storage.check()
        assert caught.value.kind.value == kind


@pytest.mark.fault("S8")
def test_committed_records_are_synced_when_there_are_new_ones(path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", synced.append)
    keeper = StorageKeeper(path, StorageMonitor())
    with closing(connect(path)) as connection:
        for number in (1, 2):
            connection.execute(f"insert into ack values('{number}', 'critical', 0.0, '', '')")
            keeper.sync()
            keeper.sync()
            assert len(synced) == number
    keeper.sync()


def test_a_database_that_is_locked_during_the_check_is_still_synced(path, monkeypatch):
    keeper, synced = StorageKeeper(path, StorageMonitor()), threading.Event()

    def fail():
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorname = "SQLITE_BUSY"
        raise error

    monkeypatch.setattr(storage_keeper, "SYNC_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(keeper, "check", fail)
    monkeypatch.setattr(keeper, "sync", synced.set)
    keeper.start()
    try:
        assert synced.wait(240)
    finally:
        keeper.stop()


@pytest.mark.fault("S10")
@pytest.mark.parametrize("is_missing", [False, True])
@pytest.mark.parametrize("has_summary", [False, True])
def test_an_empty_or_missing_file_is_damage_only_where_there_was_a_database(
    tmp_path, is_missing, has_summary
):
    """A first agent may be killed between creating the file and its tables."""
    path, storage = tmp_path / "sentinel.db", StorageMonitor()
    if not is_missing:
        path.touch()
    if has_summary:
        write_summary(tmp_path, make_summary({"run": "run", "state": "running"}, ("", [], None)))
    open_storage(path, storage, Counters(), lambda: NOW).close()

    assert storage.state.mode == ("replaced" if has_summary else "ok")
    assert len(set_aside_files(path)) == has_summary
    assert storage.reads_again_until == (NOW if has_summary else 0.0)
    assert load_state(path).mode == storage.state.mode
