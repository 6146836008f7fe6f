"""Disks and file systems that fail in part: the run is watched on, and no step is lost.

The calls of the agent fail in its C library, so that SQLite gets the errors that a disk returns.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from contextlib import closing

import pytest
from support.faulty_libc import ALWAYS, FaultyLibc
from support.home_faults import can_mount, small_disk
from support.namespaces import shell, unshared
from support.rank_processes import until
from support.watched_jobs import TIMEOUT_SECONDS, watched_job

pytestmark = [pytest.mark.chaos, pytest.mark.full, pytest.mark.timeout(600)]


@pytest.fixture
def libc(tmp_path):
    """Faults of everything in the directory of the run, but not of its ring."""
    return FaultyLibc(tmp_path / "libc", path="/home/runs/job/")


def nan_is_notified_and_nothing_lost(job):
    job.check_nan_and_end()
    assert set(job.detectors()) <= {"nan_or_inf", "storage"}


@pytest.mark.fault("S11")
@pytest.mark.parametrize("count", [1, ALWAYS], ids=["once", "always"])
def test_a_disk_that_cannot_sync(tmp_path, libc, count):
    with watched_job(tmp_path, environ=libc.environ) as job:
        job.until_more_steps()
        libc.fail_syncs(errno.EIO, count)
        until(lambda: libc.get("failed"), TIMEOUT_SECONDS, "a sync fails")
        job.until_more_steps()
        libc.heal_disk()
        nan_is_notified_and_nothing_lost(job)


@pytest.mark.fault("S12")
@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_a_disk_that_is_full_in_the_middle_of_a_transaction_for_a_moment(tmp_path, libc, after):
    with watched_job(tmp_path, environ=libc.environ) as job:
        job.until_more_steps()
        libc.fail_writes(errno.ENOSPC, count=1, after=after)
        until(lambda: libc.get("failed"), TIMEOUT_SECONDS, "a write fails")
        nan_is_notified_and_nothing_lost(job)


@pytest.mark.fault("S13")
def test_a_quota_that_is_used_up_and_raised(tmp_path, libc):
    """The file system has space, but no more for this user."""
    with watched_job(tmp_path, environ=libc.environ) as job:
        job.until_more_steps()
        libc.fail_writes(errno.EDQUOT)
        opened = job.until_found("storage")
        assert "quota" in str(opened).lower()
        job.until_more_steps()
        libc.heal_disk()
        job.until_found("storage", "resolved")
        nan_is_notified_and_nothing_lost(job)


@pytest.mark.fault("S14")
def test_writes_that_are_cut_short(tmp_path, libc):
    with watched_job(tmp_path, environ=libc.environ) as job:
        job.until_more_steps()
        libc.shorten_writes(ALWAYS)
        until(lambda: libc.get("failed") >= 20, TIMEOUT_SECONDS, "writes are cut")
        nan_is_notified_and_nothing_lost(job)


@pytest.mark.fault("S15")
def test_a_file_system_without_locks(tmp_path):
    """As some that a server of files outside a virtual machine provides."""
    libc = FaultyLibc(tmp_path / "libc", path="/home/")
    libc.set(lock_error=errno.ENOSYS)
    with watched_job(tmp_path, environ=libc.environ) as job:
        job.until_more_steps()
        nan_is_notified_and_nothing_lost(job)


@pytest.mark.fault("S16")
@pytest.mark.parametrize("suffix", ["-shm", "-wal"])
def test_a_companion_of_the_database_is_deleted_while_it_is_open(tmp_path, suffix):
    with watched_job(tmp_path) as job:
        job.until_more_steps()
        (job.home / f"sentinel.db{suffix}").unlink()
        job.until_more_steps(50)
        job.check_nan()
        job.kill_agent()
        job.until_more_steps()
        steps = job.end()
        assert job.stored() == list(range(1, steps + 1))
        # What was committed to a deleted log is lost with the kill: a repeat has the same key.
        found = {body["groupKey"] for body in job.found("nan_or_inf")}
        assert found == {"job/nan_or_inf#1"}


@pytest.mark.fault("S16")
@pytest.mark.parametrize("suffix", ["-shm", "-wal"])
def test_a_companion_of_the_database_is_cut_while_it_is_open(tmp_path, suffix):
    """The end of the index of the log is mapped: an access to it kills the agent with SIGBUS."""
    with watched_job(tmp_path) as job:
        job.until_more_steps()
        path = job.home / f"sentinel.db{suffix}"
        os.truncate(path, path.stat().st_size // 2 if suffix == "-wal" else 0)
        job.check_nan()
        job.until_more_steps(50)
        job.end()
        job.assert_sent_once()


@pytest.mark.fault("S17")
def test_the_write_ahead_log_is_cut_to_half_while_no_agent_runs(tmp_path):
    """What it had is read again from the ring, and what was sent is not sent again."""
    with watched_job(tmp_path) as job:
        job.until_more_steps(200)
        agent = job.agent_process()
        agent.suspend()
        log = job.home / "sentinel.db-wal"
        os.truncate(log, log.stat().st_size // 2)
        agent.kill()
        job.agent_process(other_than=agent)
        nan_is_notified_and_nothing_lost(job)


@pytest.mark.fault("S18")
def test_an_older_copy_of_the_database_is_restored(tmp_path):
    """Its positions are older than what was read: that is read again, and not sent again."""
    with watched_job(tmp_path) as job:
        job.until_more_steps(50)
        with (
            closing(sqlite3.connect(job.home / "sentinel.db")) as source,
            closing(sqlite3.connect(tmp_path / "backup.db")) as backup,
        ):
            source.backup(backup)
        job.until_more_steps(50)
        agent = job.agent_process()
        agent.suspend()
        for suffix in ("", "-wal", "-shm"):
            (job.home / f"sentinel.db{suffix}").unlink(missing_ok=True)
        shutil.copy(tmp_path / "backup.db", job.home / "sentinel.db")
        agent.kill()
        job.agent_process(other_than=agent)
        nan_is_notified_and_nothing_lost(job)


@pytest.mark.fault("S19")
def test_the_database_is_a_link_to_another_disk(tmp_path):
    """The link is made by hand, for a home directory with little space."""
    target = tmp_path / "elsewhere"
    target.mkdir()
    directory = tmp_path / "job" / "home" / "runs" / "job"
    directory.mkdir(parents=True, mode=0o700)
    (directory.parent).chmod(0o700)
    (directory / "sentinel.db").symlink_to(target / "sentinel.db")
    with watched_job(tmp_path) as job:
        job.until_more_steps()
        job.kill_agent()
        nan_is_notified_and_nothing_lost(job)


@pytest.mark.fault("S20")
def test_shared_memory_is_emptied_while_the_run_goes_on(tmp_path):
    """As by `RemoveIPC` of systemd, or by a cleaner of old files: names vanish, mappings stay."""
    with watched_job(tmp_path) as job:
        job.until_more_steps()
        for path in (job.folder / "rings").iterdir():
            shutil.rmtree(path)
        job.until_more_steps(100)
        nan_is_notified_and_nothing_lost(job)


@pytest.mark.fault("S21")
def test_no_inodes_are_left(tmp_path):
    if not can_mount():
        pytest.skip("a file system with few inodes needs mounting, as root")
    home = tmp_path / "home"
    home.mkdir()
    with (
        small_disk(home, "64m,nr_inodes=40"),
        watched_job(tmp_path, environ={"SENTINEL_HOME": str(home)}) as job,
    ):
        until((home / "runs" / "job" / "sentinel.db").exists, TIMEOUT_SECONDS, "the database")
        number = 0
        while True:
            try:
                (home / f"file{number}").touch()
            except OSError:
                break
            number += 1
        job.turn_on("nan")
        job.until_found("nan_or_inf")
        job.turn_on("end")
        assert job.launcher.wait(TIMEOUT_SECONDS) == 0


@pytest.mark.fault("S22")
def test_a_home_directory_without_the_right_to_run_programs(tmp_path):
    """A mount with `noexec,nosuid,nodev`: nothing there is run or mapped as code."""
    prefix = [
        *unshared("--mount"),
        *shell(f"mount -t tmpfs -o noexec,nosuid,nodev,mode=700 none {tmp_path}/noexec"),
    ]
    (tmp_path / "noexec").mkdir()
    home = tmp_path / "noexec" / "home"
    with watched_job(tmp_path, prefix=prefix, environ={"SENTINEL_HOME": str(home)}) as job:
        job.turn_on("nan")
        job.until_found("nan_or_inf")
        job.turn_on("end")
        assert job.launcher.wait(TIMEOUT_SECONDS) == 0
        assert job.detectors() == ["nan_or_inf"]
