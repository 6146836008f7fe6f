"""Where the files of a run are after a failure of the storage."""

from __future__ import annotations

import errno

import pytest
from support.insight_results import surface

from sentinel.agent.registration import AgentRegistration
from sentinel.agent.run_directory import RunDirectory
from sentinel.insight.artifact import list_artifacts, save_artifact
from sentinel.model.storage_state import StorageState
from sentinel.store.database import connect
from sentinel.store.storage_monitor import StorageMonitor
from sentinel.transport.paths import fallback_run_dir, run_dir, shared_run_dir


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


def test_results_of_insight_follow_the_files_of_the_run(tmp_path):
    home = run_dir("live")
    save_artifact(home, surface(1, size=5))
    storage = StorageMonitor()
    storage.report(OSError(errno.ENOSPC, "No space left on device"))
    registration = AgentRegistration("live", tmp_path / "home" / "targets")
    registration.acquire()
    directory = RunDirectory("live", storage, registration)
    connect(directory.database_path).close()
    assert directory.path == fallback_run_dir("live")
    assert [each["step"] for each in list_artifacts(directory.path)] == [1]
    save_artifact(directory.path, surface(2, size=5))
    directory.close(ended=True)

    assert [each["step"] for each in list_artifacts(home)] == [1, 2]
    assert not shared_run_dir("live").exists()
