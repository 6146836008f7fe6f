"""A home directory that cannot be used costs neither the training nor its monitoring."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from support.home_faults import (
    can_freeze,
    can_mount,
    disk,
    frozen,
    hanging_mount,
    small_disk,
    stopped,
)
from support.home_runs import database, home_run, is_served_from
from support.rank_processes import until
from support.the_only import the_only

from sentinel.model.record import Event
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.transport.paths import is_agent_running
from sentinel.transport.process import is_killed

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

STORAGE = "/storage"
"""Part of the name of the incident of a degraded storage."""


def stored_steps(home):
    with closing(connect(database(home))) as connection:
        records = History(connection).records("home")
        return [record.step for record in records if record.event is Event.STEP]


def fill(disk):
    """Write to the disk until it is full."""
    with (disk / "filler").open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2


def remove(folder: Path) -> None:
    """Delete a directory in which an agent may write a file meanwhile."""
    for _ in range(100):
        try:
            return shutil.rmtree(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
    raise AssertionError(f"{folder} cannot be deleted")


@pytest.mark.fault("S2", "S7")
def test_a_run_goes_through_every_unusable_home_without_a_lost_step(tmp_path):
    """A file in its place, then deleted, then replaced by another directory, then a NaN."""
    home = tmp_path / "home"
    home.write_text("a file")
    with home_run(tmp_path) as run:
        opened = run.until_seen(STORAGE)
        assert "cannot be written (File exists)" in str(opened)
        home.unlink()
        until(is_served_from(home), 240.0, "the run is copied to the home directory")
        run.until_seen(STORAGE, "resolved")

        remove(home)
        until(is_served_from(home), 240.0, "the directory is made again")
        home.rename(tmp_path / "away")
        home.mkdir()
        until(is_served_from(home), 240.0, "the run is copied to the new directory")
        (tmp_path / "nan").touch()
        run.until_seen("nan_or_inf")
        steps = run.end()

    assert stored_steps(home) == list(range(1, steps + 1))
    assert not (tmp_path / "shm" / "home").exists(), "nothing is left in shared memory"


@pytest.mark.fault("A15")
@pytest.mark.full
@pytest.mark.parametrize("delay", [0.0, 0.03, 0.1, 0.3])
def test_ranks_that_are_stopped_while_the_run_moves_are_all_named(tmp_path, delay):
    """The agent is replaced in its process while both ranks end, and their parent reaps them."""
    home = tmp_path / "home"
    home.write_text("a file")
    with home_run(tmp_path, world=2) as run:
        run.until_seen(STORAGE)
        home.unlink()
        until(database(home).parent.exists, 240.0, "the run moves to the home directory")
        time.sleep(delay)
        for rank in run.ranks:
            rank.terminate()
        for rank in run.ranks:
            rank.wait(240)
        assert run.agent.wait(240) == 0
        alerts = [each.json for each in run.receiver.accepted if each.json["status"] == "firing"]
        found = the_only(each for each in alerts if each["commonLabels"]["detector"] == "run_died")

    assert found["commonLabels"]["severity"] == "warning"
    assert found["commonAnnotations"]["summary"].startswith("Ranks 0-1 were ended by SIGTERM ")


@pytest.mark.fault("S1")
@pytest.mark.full
def test_a_full_disk_is_reported_and_nothing_is_lost(tmp_path):
    """Where mounting is not permitted, a home directory that is a file stands in for the disk."""
    home = tmp_path / "home"
    home.mkdir()
    with ExitStack() as stack:
        if can_mount():
            stack.enter_context(small_disk(home, "24m"))
        run = stack.enter_context(home_run(tmp_path))
        until(is_served_from(home), 240.0, "the run is copied to the home directory")
        if can_mount():
            fill(home)
            opened = run.until_seen(STORAGE)
            assert " MiB free since" in str(opened)
        else:
            remove(home)
            home.touch()
            run.until_seen(STORAGE)
        (tmp_path / "nan").touch()
        run.until_seen("nan_or_inf")
        (home / "filler").unlink() if can_mount() else home.unlink()
        run.until_seen(STORAGE, "resolved")
        steps = run.end()

        assert stored_steps(home) == list(range(1, steps + 1))


@pytest.mark.fault("S1", "S2")
@pytest.mark.full
@pytest.mark.parametrize(("size", "read_only"), [("100k", False), ("10m", True)])
def test_a_disk_that_is_full_or_read_only_at_the_start(tmp_path, size, read_only):
    """The trainer starts the agent. A file stands in where mounting is not permitted."""
    home = tmp_path / "home"
    with ExitStack() as stack:
        if can_mount():
            home.mkdir()
            stack.enter_context(small_disk(home, size, read_only=read_only))
        else:
            home.touch()
        run = stack.enter_context(home_run(tmp_path, starts_agent=True))
        opened = run.until_seen(STORAGE)
        if can_mount():
            assert ("is read-only" if read_only else "MiB free") in str(opened)
        (tmp_path / "nan").touch()
        run.until_seen("nan_or_inf")
        run.end()


@pytest.mark.fault("S5", "S7")
@pytest.mark.full
@pytest.mark.parametrize("begins_hanging", [True, False])
def test_a_home_directory_that_does_not_answer(tmp_path, begins_hanging):
    """A FUSE mount without a server; where mounting is not permitted, a patched agent."""
    home = tmp_path / "home"
    home.mkdir()
    with ExitStack() as stack:
        # Unmounted first, since a process that waits for it cannot be killed.
        mount = ExitStack()
        if can_mount() and begins_hanging:
            mount.enter_context(hanging_mount(home))
        remote = "" if can_mount() else "hanging"
        run = stack.enter_context(home_run(tmp_path, remote=remote, hangs=True))
        stack.enter_context(mount)
        if can_mount() and not begins_hanging:
            until(is_served_from(home), 240.0, "the run is in the home directory")
            mount.enter_context(hanging_mount(home))
        run.until_seen("does not answer")
        (tmp_path / "nan").touch()
        run.until_seen("nan_or_inf")
        run.end_training()


@pytest.mark.fault("S5")
def test_on_a_file_server_the_run_is_in_shared_memory_and_copied(tmp_path):
    """A local directory that the agent takes for one on a file server."""
    home = tmp_path / "home"
    with home_run(tmp_path, remote="working") as run:
        until(is_served_from(home), 240.0, "the first copy")
        assert (tmp_path / "shm" / "home" / "state" / "sentinel.db").exists()
        assert not database(home).with_name("sentinel.db-wal").exists()
        (tmp_path / "nan").touch()
        run.until_seen("nan_or_inf")
        steps = run.end()

    assert stored_steps(home) == list(range(1, steps + 1))
    assert not (tmp_path / "shm" / "home").exists()
    assert run.find(STORAGE) is None


@pytest.mark.fault("S3")
@pytest.mark.full
def test_shared_memory_that_is_too_small_for_a_ring(tmp_path):
    """Mounting is needed; without it the run has shared memory of the usual size."""
    (tmp_path / "shm").mkdir()
    with ExitStack() as stack:
        if can_mount():
            stack.enter_context(small_disk(tmp_path / "shm", "200k"))
        run = stack.enter_context(home_run(tmp_path))
        (tmp_path / "nan").touch()
        run.until_seen("nan_or_inf")
        run.end()


@pytest.mark.fault("S4")
def test_a_locked_database_in_the_home_directory_delays_nothing(tmp_path):
    """A second process holds the write lock of the database."""
    home = tmp_path / "home"
    with home_run(tmp_path) as run:
        until(is_served_from(home), 240.0, "the run is copied to the home directory")
        with closing(connect(database(home), "delete")) as connection:
            connection.execute("begin exclusive")
            (tmp_path / "nan").touch()
            run.until_seen("nan_or_inf")
            connection.execute("rollback")
        steps = run.end()

    assert stored_steps(home) == list(range(1, steps + 1))


@pytest.mark.fault("S4")
@pytest.mark.parametrize("agent", ["with short intervals", "of the trainer"])
def test_a_frozen_disk_delays_no_notification(tmp_path, agent):
    """A filesystem that accepts no write; where mounting is not permitted, a patched agent.

    That it does not respond is notified after two minutes, or a second with short intervals.
    """
    home = tmp_path / "home"
    home.mkdir()
    starts_agent = agent == "of the trainer" and can_freeze()
    with ExitStack() as stack:
        if can_freeze():
            stack.enter_context(disk(home, tmp_path / "image"))
        remote = "" if can_freeze() else "stops"
        run = stack.enter_context(
            home_run(tmp_path, remote=remote, hangs=True, starts_agent=starts_agent)
        )
        until(is_served_from(home), 240.0, "the run is copied to the home directory")
        with frozen(home) if can_freeze() else stopped(home):
            # A copy begins, and waits.
            (tmp_path / "nan").touch()
            run.until_seen("nan_or_inf")
            if not starts_agent:
                opened = run.until_seen("does not respond")
                assert opened["commonLabels"]["severity"] == "warning"
            ring = next((tmp_path / "shm" / "home").glob("*.ring"))
            first = sequence(ring)
            until(lambda: sequence(ring) > first + 20, 240.0, "the training continues")
        if not starts_agent:
            run.until_seen(STORAGE, "resolved")
        steps = run.end()
        until(lambda: not (tmp_path / "shm" / "home").exists(), 240.0, "the last copy is made")

        assert stored_steps(home) == list(range(1, steps + 1))
    keys = [request.headers["webhook-id"] for request in run.receiver.accepted]
    assert len({*keys}) == len(keys), "nothing is sent twice"


@pytest.mark.full
@pytest.mark.fault("A28")
def test_an_agent_that_is_killed_while_the_disk_is_frozen_is_replaced(tmp_path):
    """The kernel keeps it, with its locks, until the disk responds."""
    if not can_freeze():
        pytest.skip("a disk that does not respond needs mounting, as root")
    home = tmp_path / "home"
    home.mkdir()
    lock = tmp_path / "shm" / "home" / "agent.lock"
    with disk(home, tmp_path / "image"), home_run(tmp_path, home=home, starts_agent=True) as run:
        until(lambda: database(home).exists(), 240.0, "the run is copied to the home directory")
        agent = int(lock.read_text())
        with frozen(home):

            def is_held():
                with suppress(ProcessLookupError):
                    os.kill(agent, signal.SIGKILL)
                return is_killed(agent) and not is_agent_running(lock.parent)

            # A copy begins, and waits.
            until(waits_for_disk(agent), 240.0, "the agent waits for the disk")
            until(is_held, 240.0, "the agent is killed")
            (tmp_path / "nan").touch()
            run.until_seen("nan_or_inf")
            assert is_killed(agent)
            assert int(lock.read_text()) != agent
        steps = run.end()
        until(lambda: not (tmp_path / "shm" / "home").exists(), 240.0, "the last copy is made")

        assert stored_steps(home) == list(range(1, steps + 1))
    keys = [request.headers["webhook-id"] for request in run.receiver.accepted]
    assert len({*keys}) == len(keys), "nothing is sent twice"


def waits_for_disk(pid):
    """Returns a function: whether a thread was in the state D at each of the last 50 calls."""
    waited = Counter()

    def waits():
        statuses = {}
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                statuses[thread.name] = (thread / "status").read_text()
        waiting = [thread for thread, text in statuses.items() if "State:\tD" in text]
        for thread in {*waited, *waiting}:
            waited[thread] = waited[thread] + 1 if thread in waiting else 0
        return max(waited.values(), default=0) >= 50

    return waits


def sequence(ring):
    from sentinel.transport.ring import read_header

    header = read_header(ring)
    assert header is not None
    return header.sequence
