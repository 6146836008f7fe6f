"""Tests of the runs in the home directory and of their deletion."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager

import pytest

from sentinel.store import stored_runs
from sentinel.transport.identity import Identity
from sentinel.transport.paths import AGENT_LOCK, ring_path, run_dir, shared_state_dir
from sentinel.transport.ring import RingWriter

NOW = 1_700_000_000.0
DAY = 86400.0


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    return tmp_path / "home"


def make_run(name, age, size=1000, *, has_ended=True):
    """A run that was last written `age` seconds ago."""
    directory = run_dir(name)
    (directory / "sentinel.db").write_bytes(b"x" * size)
    (directory / AGENT_LOCK).touch()
    if has_ended:
        (directory / "outcome.json").touch()
    for path in (*directory.iterdir(), directory):
        os.utime(path, (NOW - age, NOW - age))
    return directory


@contextmanager
def locked(directory):
    descriptor = os.open(directory / AGENT_LOCK, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


def statuses(home):
    return {run.run: run.status for run in stored_runs.stored_runs(home, NOW)}


def test_runs_are_listed_oldest_first_with_their_size(home):
    make_run("new", DAY)
    make_run("old", 9 * DAY, size=5000)
    runs = stored_runs.stored_runs(home, NOW)

    assert [(run.run, run.size) for run in runs] == [("old", 5000), ("new", 1000)]
    assert stored_runs.home_size(home) == 6000


def test_a_run_with_an_agent_is_live(home):
    with locked(make_run("live", 9 * DAY)):
        assert statuses(home) == {"live": "live"}
    assert statuses(home) == {"live": "finished"}


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_run_in_a_home_that_is_read_only_has_ended_too(home, monkeypatch, code):
    directory = make_run("archived", 9 * DAY)
    open_file = os.open

    def open_read_only(path, flags, *arguments):
        if flags & os.O_RDWR and path == directory / AGENT_LOCK:
            raise OSError(code, os.strerror(code))
        return open_file(path, flags, *arguments)

    with locked(directory):
        monkeypatch.setattr(os, "open", open_read_only)
        assert statuses(home) == {"archived": "live"}
    assert statuses(home) == {"archived": "finished"}


def test_a_run_whose_ranks_run_is_live_without_an_agent(home):
    make_run("ranks", 9 * DAY)
    ring = RingWriter(ring_path("ranks", 0, 0), Identity("ranks"), 1 << 16)
    assert statuses(home) == {"ranks": "live"}
    ring.close("finished")


def test_a_run_whose_files_are_in_shared_memory_is_live(home):
    """Its agent could not use the home directory, and may move back."""
    make_run("moved", 9 * DAY)
    (shared_state_dir("moved") / "sentinel.db").touch()

    assert statuses(home) == {"moved": "live"}


def test_a_run_without_outcome_has_ended_once_nothing_was_written_for_a_day(home):
    make_run("recent", 0.5 * DAY, has_ended=False)
    make_run("abandoned", 2 * DAY, has_ended=False)
    make_run("just-ended", 10.0)

    assert statuses(home) == {
        "abandoned": "finished", "recent": "unfinished", "just-ended": "unfinished",
    }  # fmt: skip


def test_a_run_of_another_node_has_ended_after_a_day(home):
    """Its ranks are not seen from here."""
    directory = make_run("elsewhere", 0.5 * DAY)
    (directory / "owner_host").write_text("another-node")
    os.utime(directory / "owner_host", (NOW - 0.5 * DAY,) * 2)
    os.utime(directory, (NOW - 0.5 * DAY,) * 2)

    assert statuses(home) == {"elsewhere": "unfinished"}


@pytest.mark.fault("S9")
def test_the_oldest_runs_that_ended_are_deleted_until_the_home_is_small_enough(home):
    for day in range(1, 6):
        make_run(f"day-{day}", day * DAY, size=1000)
    with locked(run_dir("day-5")):
        deleted = stored_runs.prune_home(home, 3500, NOW)

    assert [run.run for run in deleted] == ["day-4", "day-3"]
    assert sorted(path.name for path in (home / "runs").iterdir()) == ["day-1", "day-2", "day-5"]


def test_a_run_that_is_used_again_is_not_deleted(home):
    directory = make_run("again", 9 * DAY)
    (run,) = stored_runs.stored_runs(home, NOW)

    with locked(directory):
        assert not stored_runs.delete_run(run, NOW)
    (directory / "sentinel.db").write_bytes(b"new")
    assert not stored_runs.delete_run(run, time.time())
    assert directory.exists()


def test_what_a_killed_deletion_left_is_removed(home):
    make_run("old", 9 * DAY)
    (home / "runs" / f"{stored_runs.DELETED_PREFIX}x-1").mkdir()
    stored_runs.prune_home(home, 1e9, NOW)

    assert [path.name for path in (home / "runs").iterdir()] == ["old"]


def test_a_home_that_does_not_exist_holds_no_run(tmp_path):
    assert stored_runs.stored_runs(tmp_path / "none", NOW) == []
    assert stored_runs.prune_home(tmp_path / "none", 0, NOW) == []
