"""Only stale rings are removed."""

from __future__ import annotations

import os
import time

import pytest
from support.rank_processes import ranks

from sentinel.live.rings import STALE_AFTER_SECONDS, remove_stale_rings
from sentinel.transport.identity import Identity
from sentinel.transport.launch_status import LAUNCH_STATUS_NAME, LaunchStatus
from sentinel.transport.paths import DATABASE_NAME, ring_path, shared_state_dir
from sentinel.transport.process import Process
from sentinel.transport.ring import RingWriter


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))


def test_only_an_old_ring_of_a_dead_process_is_removed():
    with ranks() as begin:
        begin(0, run="living")
        exited = begin(0, run="dead")
        exited.kill()
        exited.wait()
        live, dead = ring_path("living", 0, 0), ring_path("dead", 0, 0)

        assert remove_stale_rings(time.time()) == []
        assert remove_stale_rings(time.time() + STALE_AFTER_SECONDS + 60.0) == [dead]
        assert live.exists()
        assert not dead.parent.exists()


@pytest.mark.fault("P13")
def test_a_ring_is_removed_although_the_pid_of_its_writer_is_used_again(monkeypatch):
    earlier = Process(os.getpid(), Process.current().start_ticks - 1)
    monkeypatch.setattr(Process, "current", lambda: earlier)
    path = ring_path("dead", 0, 0)
    RingWriter(path, Identity("dead", 0, 0)).abandon()

    assert remove_stale_rings(time.time() + STALE_AFTER_SECONDS + 60.0) == [path]


@pytest.mark.parametrize(("database", "is_kept"), [(False, False), (True, True)])
def test_the_launch_of_a_dead_run_is_removed_with_its_last_ring(monkeypatch, database, is_kept):
    """Not before the database that refers to it has moved to the home directory."""
    dead = Process(os.getpid(), Process.current().start_ticks - 1)
    LaunchStatus("dead", dead, "train", 1.0, 2.0, 137).write()
    with monkeypatch.context() as patched:
        patched.setattr(Process, "current", lambda: dead)
        path = ring_path("dead", 0, 0)
        RingWriter(path, Identity("dead", 0, 0)).abandon()
    if database:
        (shared_state_dir("dead") / DATABASE_NAME).touch()

    assert remove_stale_rings(time.time() + STALE_AFTER_SECONDS + 60.0) == [path]
    assert (path.parent / LAUNCH_STATUS_NAME).exists() == is_kept
    assert path.parent.exists() == is_kept


def test_a_file_that_is_not_a_ring_is_not_removed():
    foreign = ring_path("strange", 0, 0)
    foreign.write_bytes(b"of another program")

    assert remove_stale_rings(time.time() + 10 * STALE_AFTER_SECONDS) == []
    assert foreign.exists()


def test_without_rings_nothing_is_removed():
    assert remove_stale_rings(time.time()) == []
