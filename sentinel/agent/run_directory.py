"""The run directory of an agent: in the home directory, else in shared memory.

While the home directory cannot be written, the run directory is in shared memory, and moves back as
soon as it can. On a file server, which may hang, it is in shared memory as well, and a thread
copies it to the home directory.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic

from sentinel.agent.home_sync import SEED_NAME, HomeSync, copy_to_home
from sentinel.agent.output_log import OUTPUT_LOG_NAME
from sentinel.agent.registration import REGISTRATION_NAME, AgentRegistration
from sentinel.insight.artifact import copy_artifacts
from sentinel.model.storage_state import MEMORY, StorageState
from sentinel.store import database
from sentinel.store.recovery import STATE_NAME, load_state, save_state
from sentinel.store.relocation import (
    begin_in_fallback,
    copy_to_fallback,
    copy_unopened_to_fallback,
    remove_database,
)
from sentinel.store.storage_monitor import FailureKind, StorageFailure, StorageMonitor
from sentinel.transport.launch_status import LAUNCH_STATUS_NAME, read_launch_status
from sentinel.transport.mounts import find_mount
from sentinel.transport.paths import (
    BASELINES_NAME,
    DATABASE_NAME,
    INSIGHT_NAME,
    REMOVED_SUFFIX,
    SENT_LOG_NAME,
    START_LOG_NAME,
    UnsafeDirectoryError,
    fallback_run_dir,
    home_dir,
    ring_dir,
    run_dir,
    write_owner_host,
)

log = logging.getLogger(__name__)

RESERVE_NAME = "reserve"
RESERVE_BYTES = 4 << 20
"""Space that is kept in the home directory, and given up when its disk is full."""
CHECK_INTERVAL_SECONDS = 2.0
"""Interval between checks that the run directory is still the one that the agent opened."""
RETRY_INTERVAL_SECONDS = 30.0
"""Interval between tries to return to the home directory."""
SEED_TIMEOUT_SECONDS = 5.0
"""Longest wait for the database of an earlier agent on a file server."""
MAX_SEED_ARTIFACT_BYTES = 8 << 20
"""Size of the newest results of insight that are copied to shared memory."""
FINAL_COPY_SECONDS = 10.0
"""Longest wait for the last copy to a file server."""
_PROBE_BYTES = 4096
_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DirectoryLostError(OSError):
    """The run directory is no longer the one that the agent opened."""


class RunDirectory:
    """The directory with the files of a run while an agent of this process serves it.

    `path` is where they are. `storage` has the failure for which the last agent of this process
    ended, if any; its state becomes `memory` where the home directory cannot be used. Raises
    OSError if shared memory cannot be used either.
    """

    def __init__(
        self,
        run: str,
        storage: StorageMonitor,
        registration: AgentRegistration,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run, self._storage, self._clock = run, storage, clock
        self._registration = registration
        self._sync: HomeSync | None = None
        self._mount = find_mount(home_dir())
        self._opened: os.stat_result | None = None
        now = monotonic()
        self._check_at, self._retry_at = now, now + RETRY_INTERVAL_SECONDS
        failure = storage.pop_failure(FailureKind.UNUSABLE, FailureKind.USABLE_AGAIN)
        error = failure.error if failure and failure.kind is FailureKind.UNUSABLE else None
        if storage.state.mode == MEMORY:
            # It is shared memory that failed; the home directory may be usable again.
            error = None
        if error is None and not self._mount.is_remote:
            try:
                self.path = self._open_home()
            except (OSError, sqlite3.Error) as home_error:
                error = home_error
            else:
                registration.set_directory(self.path)
                self._set_usable()
                return
        self.path = self._open_fallback()
        registration.set_directory(self.path)
        if error is not None:
            self._set_unusable(error)
        if self._mount.is_remote:
            self._start_sync()

    @property
    def is_home(self) -> bool:
        """Whether it is in the home directory."""
        return self.path.parent.parent == home_dir()

    @property
    def database_path(self) -> Path:
        """Path of the database."""
        return self.path / DATABASE_NAME

    def publish_target(self) -> None:
        """Write the target for Prometheus, once the agent is registered."""
        if self._sync is None:
            try:
                self._registration.publish_target()
            except OSError as error:
                log.warning("Prometheus cannot discover this agent: %s", error)

    def note_opened(self) -> None:
        """Note that the database is open: from now on it is checked that it is still there."""
        self._opened = self.database_path.stat()

    def check(self) -> None:
        """Report to the storage if the agent must continue in another directory. Never waits."""
        now = monotonic()
        if now < self._check_at:
            return
        self._check_at = now + CHECK_INTERVAL_SECONDS
        mount = find_mount(home_dir())
        if self.is_home:
            self._check_home(mount.number)
        elif mount.is_remote:
            self._check_sync()
        elif now >= self._retry_at:
            self._retry_at = now + RETRY_INTERVAL_SECONDS
            if self._could_return():
                reason = OSError(f"{home_dir()} can be used again")
                self._storage.request_move(StorageFailure(FailureKind.USABLE_AGAIN, reason))

    def release_reserve(self) -> None:
        """Give up the reserved space, for what must still be stored on a full disk."""
        if self.is_home and not self.may_hang:
            with suppress(OSError):
                (self.path / RESERVE_NAME).unlink(missing_ok=True)

    def rescue(self, connection: sqlite3.Connection) -> None:
        """Copy the open database to shared memory, for the next agent; it may be deleted or full.

        What other threads store afterwards is not in the copy.
        """
        if not self.is_home:
            return
        fallback = fallback_run_dir(self.run)
        try:
            save_state(fallback / DATABASE_NAME, self._storage.state)
            copy_to_fallback(connection, fallback / DATABASE_NAME)
        except (OSError, sqlite3.Error) as error:
            log.warning("The database cannot be copied to shared memory: %s", error)

    @property
    def may_hang(self) -> bool:
        """Whether an access to the home directory could wait for a file server."""
        return find_mount(home_dir()).is_remote

    def close_connection(self, connection: sqlite3.Connection) -> None:
        """Close the database; one that could hang is left open instead, until the process ends."""
        if self.is_home and self.may_hang:
            # SQLite removes the write-ahead log as it closes, also when the object is deleted.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        else:
            # The directory may be gone.
            with suppress(sqlite3.Error):
                connection.close()

    def close(self, *, ended: bool) -> None:
        """Leave the directory; at the end of the run, move what is in shared memory home."""
        if self.is_home and self.may_hang:
            self._registration.release(is_directory_usable=False)
            return
        if self._sync is not None:
            is_copied = self._sync.finish(FINAL_COPY_SECONDS if ended else 0.0)
        else:
            is_copied = self.is_home or (ended and self._move_home())
            if not self.may_hang:
                with suppress(OSError):
                    self._registration.withdraw_target()
            if ended and self.is_home:
                with suppress(OSError):
                    (self.path / RESERVE_NAME).unlink(missing_ok=True)
        if ended and is_copied:
            with suppress(OSError):
                remove_shared_files(self.run)
        elif ended:
            log.error("Run %s stays in %s: its home directory is unusable", self.run, self.path)
        with suppress(OSError):
            self._registration.release()

    def _open_home(self) -> Path:
        """The directory in the home directory, with what was stored in shared memory meanwhile."""
        directory = run_dir(self.run)
        write_owner_host(self.run, os.uname().nodename)
        _make_reserve(directory)
        _probe(directory)
        fallback = fallback_run_dir(self.run)
        if (fallback / DATABASE_NAME).exists():
            _append_file(fallback / OUTPUT_LOG_NAME, directory / OUTPUT_LOG_NAME)
            copy_to_home(fallback, directory)
            _remove_files(fallback)
        return directory

    def _open_fallback(self) -> Path:
        directory = fallback_run_dir(self.run)
        path = directory / DATABASE_NAME
        if not path.exists():
            try:
                if self._mount.is_remote:
                    self._seed_from_server(path)
                else:
                    home = home_dir() / "runs" / self.run
                    with suppress(FileNotFoundError):
                        shutil.copy(home / STATE_NAME, directory)
                    copy_unopened_to_fallback(home / DATABASE_NAME, path)
            except (FileNotFoundError, NotADirectoryError):
                log.debug("Run %s has no database to continue", self.run)
            except (OSError, sqlite3.Error) as error:
                log.warning("The database of an earlier agent cannot be read: %s", error)
                begin_in_fallback(path)
        if not self._mount.is_remote:
            with suppress(OSError):
                home = home_dir() / "runs" / self.run
                copy_artifacts(home, directory, MAX_SEED_ARTIFACT_BYTES)
        return directory

    def _seed_from_server(self, path: Path) -> None:
        """Copy the database from a file server, which may hang. Raises OSError, sqlite3.Error."""
        seed = path.with_name(SEED_NAME)
        errors: list[Exception] = []

        def copy() -> None:
            try:
                home = home_dir() / "runs" / self.run
                _append_file(home / OUTPUT_LOG_NAME, path.with_name(OUTPUT_LOG_NAME), remove=False)
                _copy_newer(home_dir() / BASELINES_NAME, path.with_name(BASELINES_NAME))
                copy_artifacts(home, path.parent, MAX_SEED_ARTIFACT_BYTES)
                with suppress(FileNotFoundError):
                    shutil.copy(home / STATE_NAME, path.parent)
                (home / DATABASE_NAME).stat()
                with closing(database.connect(home / DATABASE_NAME, "delete")) as connection:
                    copy_to_fallback(connection, seed)
            except (OSError, sqlite3.Error) as error:
                errors.append(error)

        thread = threading.Thread(target=copy, name="sentinel-seed", daemon=True)
        thread.start()
        thread.join(SEED_TIMEOUT_SECONDS)
        if thread.is_alive():
            raise TimeoutError(errno.ETIMEDOUT, "the file server does not answer", str(home_dir()))
        if errors:
            raise errors[0]
        seed.rename(path)

    def _start_sync(self) -> None:
        def open_home() -> Path:
            directory = run_dir(self.run)
            write_owner_host(self.run, os.uname().nodename)
            return directory

        def publish(directory: Path, is_last: bool) -> None:
            _copy_newer(self.path / BASELINES_NAME, home_dir() / BASELINES_NAME)
            if is_last:
                (directory / REGISTRATION_NAME).unlink(missing_ok=True)
                self._registration.withdraw_target()
            elif self._registration.is_registered:
                shutil.copy(self.path / REGISTRATION_NAME, directory)
                self._registration.publish_target()

        self._sync = HomeSync(self.path, open_home, publish)
        self._sync.start()

    def _check_home(self, mount_number: int) -> None:
        lost = mount_number != self._mount.number
        if not lost and self._opened is not None:
            try:
                lost = not os.path.samestat(self.database_path.stat(), self._opened)
            except OSError:
                lost = True
        if lost:
            error = DirectoryLostError(f"{self.path} was deleted or replaced")
            self._storage.request_move(StorageFailure(FailureKind.UNUSABLE, error))

    def _check_sync(self) -> None:
        if self._sync is None:
            self._start_sync()
        elif self._sync.is_hanging:
            self._set_unusable(TimeoutError(errno.ETIMEDOUT, "no answer"))
        elif self._sync.error is not None:
            self._set_unusable(self._sync.error)
        else:
            self._set_usable()

    def _could_return(self) -> bool:
        """Whether the home directory has space for all that is in shared memory, and more."""
        try:
            directory = run_dir(self.run)
            _probe(directory)
            size = sum(path.stat().st_size for path in self.path.rglob("*"))
            return _free_bytes(directory) >= size + 2 * RESERVE_BYTES
        except OSError:
            return False

    def _move_home(self) -> bool:
        try:
            self._open_home()
            (run_dir(self.run) / RESERVE_NAME).unlink(missing_ok=True)
        except (OSError, sqlite3.Error):
            return False
        return True

    def _set_usable(self) -> None:
        state = self._storage.state
        if state.mode == MEMORY:
            log.info("%s can be used again", home_dir())
            self._storage.state = StorageState(number=state.number)

    def _set_unusable(self, error: Exception) -> None:
        reason, remedy = describe_problem(error, is_local=not find_mount(home_dir()).is_remote)
        state = self._storage.state
        if state.mode == MEMORY and state.reason == reason:
            return
        is_new = state.mode != MEMORY
        log.error("%s; the run is stored in shared memory meanwhile (%s)", reason, error)
        # Another agent of the run may have had more.
        number = max(state.number, load_state(self.database_path, is_kept=True).number)
        self._storage.state = StorageState(
            MEMORY,
            reason,
            self._clock() if is_new else state.since,
            remedy,
            number=number + is_new,
            folder=str(fallback_run_dir(self.run)),
        )
        save_state(self.database_path, self._storage.state)


def describe_problem(error: Exception, *, is_local: bool = True) -> tuple[str, str]:
    """Why the home directory cannot be used, and the remedy."""
    home = home_dir()
    name = str(getattr(error, "sqlite_errorname", None) or "")
    number = getattr(error, "errno", None)
    if name == "SQLITE_FULL" or number in _FULL_ERRORS:
        return _describe_full(home, is_local=is_local)
    if name.startswith("SQLITE_READONLY") or number == errno.EROFS:
        return (
            f"{home} is read-only",
            "Make it writable again, or set SENTINEL_HOME to another directory for the next run.",
        )
    if isinstance(error, DirectoryLostError):
        return (
            str(error),
            "Do not remove the directory of a live run. It is made again within a minute.",
        )
    if isinstance(error, TimeoutError):
        return (
            f"The file server of {home} does not answer",
            "Check the file server and the mount, or set SENTINEL_HOME to a local disk.",
        )
    if isinstance(error, UnsafeDirectoryError):
        return str(error).rstrip("."), "Run `sentinel doctor`: it names the remedy."
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    return (
        f"{home} cannot be written ({text})",
        "Run `sentinel doctor`, or set SENTINEL_HOME to a directory that you own.",
    )


def _describe_full(home: Path, *, is_local: bool) -> tuple[str, str]:
    free = "no space"
    with suppress(OSError):
        if is_local:
            # A directory that does not exist yet is on the disk of its parent.
            directory = next(path for path in (home, *home.parents) if path.exists())
            if os.statvfs(directory).f_favail == 0:
                return f"The disk of {home} has no free inodes", "Delete files that are not needed."
            free = f"only {_free_bytes(directory) / 2**20:,.1f} MiB"
    return (
        f"The disk of {home} has {free} free",
        "Free some space there; the run is stored in memory meanwhile, and moves back by itself.",
    )


def remove_shared_files(run: str) -> None:
    """Remove what an ended run leaves in shared memory, but for what the home directory lacks.

    The marks of removed rings are moved there. Raises OSError if that is not possible.
    """
    fallback, directory = fallback_run_dir(run), ring_dir(run)
    marks = sorted(fallback.glob(f"*{REMOVED_SUFFIX}"))
    home = run_dir(run) if marks and not find_mount(home_dir()).is_remote else None
    for mark in marks:
        if home is not None:
            (home / mark.name).touch(mode=0o600)
        mark.unlink()
    _remove_files(fallback)
    launch = read_launch_status(run)
    if launch is None or not launch.launcher.is_alive():
        (directory / LAUNCH_STATUS_NAME).unlink(missing_ok=True)
    for name in (START_LOG_NAME, SENT_LOG_NAME):
        (directory / name).unlink(missing_ok=True)
    for each in (fallback, directory):
        # Not empty while another agent has files in it.
        with suppress(OSError):
            each.rmdir()


def _remove_files(fallback: Path) -> None:
    """Remove the files of a run directory in shared memory, the database last."""
    for name in (BASELINES_NAME, INSIGHT_NAME):
        shutil.rmtree(fallback / name, ignore_errors=True)
    for path in fallback.iterdir():
        if not path.name.startswith(DATABASE_NAME) and not path.name.endswith(REMOVED_SUFFIX):
            path.unlink(missing_ok=True)
    remove_database(fallback / DATABASE_NAME)


def _append_file(source: Path, target: Path, *, remove: bool = True) -> None:
    """Append a file to another, if it exists. Raises OSError."""
    with suppress(FileNotFoundError):
        text = source.read_bytes()
        with target.open("ab") as file:
            file.write(text)
        if remove:
            source.unlink()


def _copy_newer(source: Path, target: Path) -> None:
    """Copy the JSON files that are newer in a directory than in another. Raises OSError."""
    for path in source.glob("*.json"):
        copy = target / path.name
        if not copy.exists() or copy.stat().st_mtime < path.stat().st_mtime:
            target.mkdir(mode=0o700, exist_ok=True)
            temporary = copy.with_name(f".{copy.name}.new")
            shutil.copy2(path, temporary)
            temporary.replace(copy)


def _make_reserve(directory: Path) -> None:
    """Reserve space for the time when the disk is full. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(directory / RESERVE_NAME, flags, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
    except BaseException:
        (directory / RESERVE_NAME).unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _probe(directory: Path) -> None:
    """Write a file and remove it. Raises OSError."""
    path = directory / f".probe-{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, bytes(_PROBE_BYTES))
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def _free_bytes(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize
