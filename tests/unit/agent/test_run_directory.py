"""Where the files of a run are after a failure of the storage."""

from __future__ import annotations

import errno

import pytest

from sentinel.agent.registration import AgentRegistration
from sentinel.agent.run_directory import RunDirectory
from sentinel.model.storage_state import StorageState
from sentinel.store.storage_monitor import StorageMonitor


@pytest.mark.parametrize("failed", ["home", "shared memory"])
def test_the_other_directory_is_used_after_a_failure(failed, tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "shm"))
    storage = StorageMonitor()
    if failed == "shared memory":
        storage.state = StorageState("memory", "The disk is full", 1.0, number=1)
    storage.report(OSError(errno.ENOSPC, "No space left on device"))
    registration = AgentRegistration("live", tmp_path / "home" / "targets")
    registration.acquire()
    directory = RunDirectory("live", storage, registration)
    directory.close(ended=False)

    is_home = failed == "shared memory"
    assert directory.is_home == is_home
    assert storage.state.mode == ("ok" if is_home else "memory")
