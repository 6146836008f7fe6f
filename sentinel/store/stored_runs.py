"""The runs in the home directory: what they take, which may be deleted, and their deletion.

A run that an agent serves, whose ranks run, or that did not end, is never deleted. Others are
deleted oldest first.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from sentinel.transport.paths import (
    AGENT_LOCK,
    DATABASE_NAME,
    RunIdError,
    current_run_dir,
    list_rings,
    read_home,
)
from sentinel.transport.ring import read_header

ABANDONED_AFTER_SECONDS = 24 * 3600.0
"""A run without an outcome has ended if nothing was written for so long."""
SETTLED_AFTER_SECONDS = 60.0
"""A run is not deleted before: it may be started again under the same id."""
DELETED_PREFIX = ".deleted-"
"""Prefix of a directory that is being deleted; the next deletion removes what is left of it."""

RunStatus = Literal["live", "unfinished", "finished"]


class StoredRun(NamedTuple):
    """A run in the home directory; `last_written` is in seconds since the epoch."""

    run: str
    directory: Path
    size: int
    last_written: float
    status: RunStatus


def stored_runs(home: Path, now: float) -> list[StoredRun]:
    """Every run below `home`, the one written last at the end."""
    runs = (_read_run(directory, now) for directory in _run_directories(home))
    return sorted((run for run in runs if run is not None), key=lambda run: run.last_written)


def has_outcome(directory: Path) -> bool:
    """Whether the agent of the run in that directory has stored how it ended."""
    return (directory / "outcome.json").exists()


def home_size(home: Path) -> int:
    """Bytes that all files below `home` take."""
    return sum(status.st_size for status in _file_statuses(home))


def runs_above(runs: Iterable[StoredRun], excess: int) -> list[StoredRun]:
    """The oldest of the runs that may be deleted, until they take `excess` bytes."""
    chosen: list[StoredRun] = []
    for run in runs:
        if excess <= 0:
            break
        if run.status == "finished":
            chosen.append(run)
            excess -= run.size
    return chosen


def delete_run(run: StoredRun, now: float) -> bool:
    """Delete the directory of the run, unless it is in use by now; whether it was deleted.

    Raises OSError.
    """
    with _agent_lock(run.directory) as is_locked:
        current = _read_run(run.directory, now)
        # Only this process holds the lock now, so an agent does not count.
        if not is_locked or current is None or _status(run.directory, current, now) != "finished":
            return False
        aside = run.directory.with_name(f"{DELETED_PREFIX}{run.run}-{os.getpid()}")
        run.directory.rename(aside)
    shutil.rmtree(aside)
    return True


def remove_leftovers(home: Path) -> None:
    """Remove what a deletion that was killed left behind. Raises OSError."""
    for path in (home / "runs").glob(f"{DELETED_PREFIX}*"):
        shutil.rmtree(path)


def prune_home(home: Path, max_bytes: float, now: float) -> list[StoredRun]:
    """Delete the oldest runs that ended until `home` takes at most `max_bytes`; which these were.

    Raises OSError.
    """
    remove_leftovers(home)
    chosen = runs_above(stored_runs(home, now), int(home_size(home) - max_bytes))
    return [run for run in chosen if delete_run(run, now)]


def _run_directories(home: Path) -> list[Path]:
    try:
        with os.scandir(home / "runs") as entries:
            names = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    return [home / "runs" / name for name in names if not name.startswith(".")]


def _read_run(directory: Path, now: float) -> StoredRun | None:
    """The run in that directory; None if it was deleted meanwhile."""
    statuses = [*_file_statuses(directory)]
    times = [status.st_mtime for status in statuses]
    with suppress(FileNotFoundError):
        times.append(directory.stat().st_mtime)
    if not times:
        return None
    size = sum(status.st_size for status in statuses)
    run = StoredRun(directory.name, directory, size, max(times), "live")
    with _agent_lock(directory) as is_locked:
        status: RunStatus = _status(directory, run, now) if is_locked else "live"
    return StoredRun(run.run, directory, size, run.last_written, status)


def _status(directory: Path, run: StoredRun, now: float) -> RunStatus:
    """The status of a run without an agent."""
    if _is_in_shared_memory(run):
        return "live"
    idle = now - run.last_written
    # Ranks on another node are not seen from here.
    is_foreign = _owner(run.run) not in {"", os.uname().nodename}
    needed = (
        SETTLED_AFTER_SECONDS
        if has_outcome(directory) and not is_foreign
        else ABANDONED_AFTER_SECONDS
    )
    return "finished" if idle >= needed else "unfinished"


def _is_in_shared_memory(run: StoredRun) -> bool:
    """Whether ranks of the run are alive, or an agent keeps its files in shared memory.

    True if shared memory cannot be read.
    """
    try:
        headers = [read_header(ring) for ring in list_rings(run.run)]
        is_elsewhere = current_run_dir(run.run) != run.directory
    except RunIdError:
        return False
    except OSError:
        return True
    return is_elsewhere or any(
        header is not None and header.process.is_alive() for header in headers
    )


def _owner(run: str) -> str:
    try:
        return read_home(run).owner
    except RunIdError:
        return ""


@contextmanager
def _agent_lock(directory: Path) -> Iterator[bool]:
    """Hold the lock of the run's agent, so that none starts; whether no agent has it."""
    try:
        descriptor = _open_lock(directory / AGENT_LOCK)
    except FileNotFoundError:
        yield True
        return
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        is_locked = False
    else:
        is_locked = True
    try:
        yield is_locked
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    """Opens a lock for reading only where nothing can be written, such as in an archive."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | flags)
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise
        return os.open(path, os.O_RDONLY | flags)


def _file_statuses(directory: Path) -> Iterator[os.stat_result]:
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                yield Path(folder, name).lstat()


def run_database(run: str) -> Path | None:
    """The database of the run of that id; None if there is none, or for no valid id."""
    try:
        path = current_run_dir(run) / DATABASE_NAME
    except RunIdError:
        return None
    return path if path.is_file() else None


def named_database(argument: Path) -> Path | None:
    """The database of the run that is named by its id, its directory or its database, if any."""
    path = argument / DATABASE_NAME if argument.is_dir() else argument
    if path.name == DATABASE_NAME and path.is_file():
        return path
    return None if argument.exists() else run_database(str(argument))


def find_databases(folder: Path) -> list[Path]:
    """The databases of the runs in a home directory, or in a folder that holds their folders."""
    return sorted({*folder.glob(f"*/{DATABASE_NAME}"), *folder.glob(f"runs/*/{DATABASE_NAME}")})
