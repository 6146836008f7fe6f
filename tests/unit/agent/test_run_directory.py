"""Where the files of a run are, and what is copied when."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from contextlib import closing
from pathlib import Path

import pytest
from support.insight_results import surface
from support.rank_processes import until

from sentinel.agent import run_directory
from sentinel.agent.registration import AgentRegistration, AlreadyServedError
from sentinel.agent.run_directory import RunDirectory, remove_shared_files
from sentinel.model.counters import Counters
from sentinel.model.record import Record
from sentinel.store.artifact import list_artifacts, save_artifact
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.store.retention import HistoryRetention
from sentinel.store.storage_monitor import StorageFailure, StorageMonitor
from sentinel.transport.paths import home_dir, run_dir, shared_run_dir, shared_state_dir


def open_directory(storage=None):
    registration = AgentRegistration("live", home_dir() / "targets")
    registration.acquire()
    directory = RunDirectory(
        registration,
        StorageMonitor() if storage is None else storage,
        lambda history: HistoryRetention(history, 1000, 1e9),
        Counters(),
    )
    connect(directory.database_path).close()
    directory.note_opened()
    return directory


def add_step(path, step):
    with closing(connect(path)) as connection:
        History(connection)._insert_record(Record("live", -1, step, float(step)))


def stored_steps(path):
    with closing(connect(path)) as connection:
        return [record.step for record in History(connection).records("live")]


def full_disk():
    return OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def no_room(monkeypatch):
    """Shared memory that is too small for a database."""
    monkeypatch.setattr(run_directory, "shared_memory_room", lambda _: 0)


def test_the_agent_works_in_shared_memory_and_the_home_directory_has_a_copy():
    directory = open_directory()
    assert directory.path == shared_state_dir("live")
    add_step(directory.database_path, 1)
    directory.close(ended=True)

    assert stored_steps(run_dir("live") / "sentinel.db") == [1]
    assert not shared_run_dir("live").exists()


def test_the_next_agent_continues_what_the_home_directory_has():
    """As after a restart of the machine, or in another container."""
    first = open_directory()
    add_step(first.database_path, 1)
    first.close(ended=False)
    shutil.rmtree(shared_run_dir("live"))

    second = open_directory()
    assert stored_steps(second.database_path) == [1]
    add_step(second.database_path, 2)
    second.close(ended=True)
    assert stored_steps(run_dir("live") / "sentinel.db") == [1, 2]


def test_the_newer_of_two_databases_is_continued():
    """The run was continued elsewhere with the same home directory, and comes back."""
    first = open_directory()
    add_step(first.database_path, 1)
    first.close(ended=False)
    add_step(run_dir("live") / "sentinel.db", 2)

    second = open_directory()
    assert stored_steps(second.database_path) == [1, 2]
    second.close(ended=True)


def test_a_newer_database_in_shared_memory_is_continued():
    first = open_directory()
    add_step(first.database_path, 1)
    first.close(ended=False)
    add_step(first.database_path, 2)

    second = open_directory()
    assert stored_steps(second.database_path) == [1, 2]
    second.close(ended=True)
    assert stored_steps(run_dir("live") / "sentinel.db") == [1, 2]


def test_an_agent_with_another_shared_memory_is_excluded(tmp_path, monkeypatch):
    first = open_directory()
    with monkeypatch.context() as patched:
        patched.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "other"))
        with pytest.raises(AlreadyServedError, match=f"served by process {os.getpid()}"):
            open_directory()
    first.close(ended=True)


def test_a_damaged_database_in_the_home_directory_is_replaced_and_reported():
    storage = StorageMonitor()
    first = open_directory()
    add_step(first.database_path, 1)
    first.close(ended=False)
    home = run_dir("live") / "sentinel.db"
    home.write_bytes(b"x" * home.stat().st_size)

    second = open_directory(storage)
    assert stored_steps(second.database_path) == [1]
    second.close(ended=True)
    assert storage.state.mode == "replaced"
    assert stored_steps(home) == [1]
    assert (home.parent / storage.state.set_aside).exists()


@pytest.mark.parametrize("failed", ["home", "shared memory"])
def test_the_other_directory_is_used_after_a_failure(failed):
    storage = StorageMonitor(is_in_memory=failed == "shared memory")
    storage.report(full_disk())
    directory = open_directory(storage)
    directory.close(ended=False)

    is_home = failed == "shared memory"
    assert directory.is_home == is_home
    assert storage.is_in_memory != is_home


def test_a_small_shared_memory_is_not_used(no_room):
    directory = open_directory()
    assert directory.is_home
    add_step(directory.database_path, 1)
    directory.close(ended=True)
    assert stored_steps(run_dir("live") / "sentinel.db") == [1]


def test_a_deleted_directory_in_shared_memory_is_made_again():
    storage = StorageMonitor()
    directory = open_directory(storage)
    add_step(directory.database_path, 1)
    with closing(connect(directory.database_path)) as connection:
        shutil.rmtree(directory.path)
        directory.check()
        with pytest.raises(StorageFailure, match="deleted or replaced"):
            storage.check()
        directory.rescue(connection)
    directory.close(ended=False)

    after = open_directory(storage)
    assert not after.is_home
    assert stored_steps(after.database_path) == [1]
    after.close(ended=True)


def test_results_of_insight_follow_the_files_of_the_run():
    home = run_dir("live")
    save_artifact(home, surface(1, size=5))
    connect(home / "sentinel.db").close()
    directory = open_directory()
    assert [each["step"] for each in list_artifacts(directory.path)] == [1]
    save_artifact(directory.path, surface(2, size=5))
    directory.close(ended=True)

    assert [each["step"] for each in list_artifacts(home)] == [1, 2]
    assert not shared_run_dir("live").exists()


def test_a_set_aside_database_is_no_leftover_in_shared_memory():
    directory = open_directory()
    add_step(directory.database_path, 1)
    (directory.path / "sentinel.db.corrupt-7").write_bytes(b"damaged")
    directory.close(ended=True)
    assert (run_dir("live") / "sentinel.db.corrupt-7").read_bytes() == b"damaged"
    remove_shared_files("live")
    assert not shared_run_dir("live").exists()


def test_a_seed_that_responds_too_late_changes_nothing(monkeypatch):
    """The disk answers after the agent has begun a new database."""
    first = open_directory()
    add_step(first.database_path, 1)
    first.close(ended=False)
    (run_dir("live") / "note.json").write_text("{}")
    shutil.rmtree(shared_run_dir("live"))
    answers, has_ended = threading.Event(), threading.Event()
    original = RunDirectory._seed

    def late(directory, *arguments):
        assert answers.wait(60.0)
        try:
            original(directory, *arguments)
        finally:
            has_ended.set()

    monkeypatch.setattr(RunDirectory, "_seed", late)
    monkeypatch.setattr(run_directory, "SEED_TIMEOUT_SECONDS", 0.1)
    second = open_directory()
    answers.set()
    assert has_ended.wait(60.0)

    names = {path.name for path in second.path.iterdir()}
    assert "note.json" not in names
    assert not [name for name in names if name.startswith("seed")]
    second.close(ended=True)


def test_what_an_earlier_agent_reported_is_true_until_a_copy_is_made(monkeypatch):
    first = open_directory()
    first._set_unusable(first._describe(full_disk()))
    number = first._storage.state.number
    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "_start_sync", lambda _: None)
        first.close(ended=False)
        storage = StorageMonitor()
        second = open_directory(storage)
    second.check()
    assert (storage.state.mode, storage.state.number) == ("memory", number)
    second._start_sync()
    until(lambda: second._sync.is_usable, 60.0, "a copy")
    second._check_at = 0.0
    second.check()
    assert storage.state.mode == "ok"
    second.close(ended=True)
    assert open_directory()._storage.state.mode == "ok"


def test_an_agent_starts_although_the_full_disk_does_not_answer_how_much_is_free(monkeypatch):
    storage = StorageMonitor()
    storage.report(full_disk())
    statvfs, answers = os.statvfs, threading.Event()

    def wait(path):
        is_of_home = Path(path) in {home_dir(), *home_dir().parents}
        assert not is_of_home or answers.wait(60.0)
        return statvfs(path)

    monkeypatch.setattr(run_directory, "SEED_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(os, "statvfs", wait)
    directory = open_directory(storage)
    assert storage.state.reason == f"The disk of {home_dir()} does not respond"
    answers.set()
    directory.close(ended=True)


@pytest.mark.parametrize("damage", [b"x" * 5000, b""])
def test_what_is_in_shared_memory_is_moved_beside_a_damaged_home_database(damage):
    directory = open_directory()
    add_step(directory.database_path, 1)
    directory.close(ended=False)
    home = run_dir("live")
    (home / "sentinel.db").write_bytes(damage)

    run_directory.move_to_home(shared_state_dir("live"), home)
    assert stored_steps(home / "sentinel.db") == [1]
