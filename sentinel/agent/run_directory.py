"""The run directory of an agent: in shared memory, with a copy in the home directory.

Any disk may be full or read-only, or stop responding. The agent therefore works in shared memory,
and a thread copies what it stores to the home directory. If shared memory is too small, the agent
works in the home directory.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from secrets import token_hex
from time import monotonic

from sentinel.agent.home_problem import DirectoryLostError, HomeProblem, describe_problem
from sentinel.agent.home_sync import SEED_NAME, HomeSync, copy_file, copy_run_directory
from sentinel.agent.registration import REGISTRATION_NAME, AgentRegistration
from sentinel.model.counters import Counters
from sentinel.model.storage_state import MEMORY, REPLACED, StorageState
from sentinel.store import database
from sentinel.store.artifact import copy_artifacts
from sentinel.store.history import History
from sentinel.store.recovery import (
    load_state,
    open_storage,
    replace_damaged,
    save_state,
    set_aside_path,
)
from sentinel.store.relocation import (
    BEGUN_HERE_NAME,
    begin_in_shared_memory,
    copy_to_shared_memory,
    database_files,
    newest_time,
    release_database,
    remove_database,
    replace_with_nothing,
    restart_spool,
)
from sentinel.store.retention import HistoryRetention
from sentinel.store.run_summary import SUMMARY_NAME
from sentinel.store.storage_monitor import (
    FailureKind,
    StorageFailure,
    StorageMonitor,
    classify,
)
from sentinel.transport.launch_status import remove_launch_files
from sentinel.transport.mounts import find_mount
from sentinel.transport.paths import (
    BASELINES_NAME,
    DATABASE_NAME,
    INSIGHT_NAME,
    MIN_DATABASE_BYTES,
    REMOVED_SUFFIX,
    home_dir,
    mark_home_rings,
    ring_dir,
    run_dir,
    shared_memory_room,
    shared_state_dir,
    write_owner_host,
)

log = logging.getLogger(__name__)

RESERVE_NAME = "reserve"
RESERVE_BYTES = 4 << 20
"""Space that is kept in the home directory if the agent works there, and given up when its disk is
full."""
MAX_SEED_ARTIFACT_BYTES = 8 << 20
"""Size of the newest results of insight that are copied to shared memory."""
MAX_DATABASE_BYTES = 64 << 20
"""Size of a database in shared memory above which its history is thinned."""
CHECK_INTERVAL_SECONDS = 2.0
"""Interval between checks of the run directory and of the copies."""
SEED_TIMEOUT_SECONDS = 5.0
"""Longest wait for what an earlier agent stored in the home directory."""
STOP_COPY_SECONDS, FINAL_COPY_SECONDS = 5.0, 10.0
"""Longest wait of an agent that stops for the last copy, and of one whose run has ended."""
_JOIN_SECONDS = 0.1
_PROBE_BYTES = 4096


class RunDirectory:
    """The directory with the files of a run while an agent of this process serves it.

    `path` is where they are: in shared memory, or in the home directory if shared memory is too
    small or has failed. `storage` has the failure for which the last agent of this process ended,
    if any; its state becomes `memory` while the home directory cannot be used. `retention` makes
    what bounds the history in the home directory. Raises OSError if neither can be used, and
    AlreadyServedError if an agent that has another shared memory serves the run.
    """

    def __init__(
        self,
        registration: AgentRegistration,
        storage: StorageMonitor,
        retention: Callable[[History], HistoryRetention],
        counters: Counters,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run = run = registration.run
        self._registration, self._storage, self._clock = registration, storage, clock
        self._retention, self._counters = retention, counters
        self._sync: HomeSync | None = None
        self._problem = ""
        self._mount = find_mount(home_dir())
        self._opened: os.stat_result | None = None
        self._check_at = monotonic()
        failure = storage.pop_failure(FailureKind.UNUSABLE)
        error = None if failure is None else failure.error
        is_memory_usable = self._mount.is_remote or bool(shared_memory_room(ring_dir(run)))
        if failure is not None and storage.is_in_memory:
            # A directory that was deleted is made again.
            is_memory_usable &= self._mount.is_remote or isinstance(error, DirectoryLostError)
            error = None
        if error is None and not is_memory_usable:
            try:
                self.path = self._open_home()
            except (OSError, sqlite3.Error) as home_error:
                error = home_error
            else:
                registration.set_directory(self.path)
                self._set_usable()
                storage.is_in_memory = False
                return
        # Locked first: the files of a dead run may be moved meanwhile.
        self.path = shared_state_dir(run)
        registration.set_directory(self.path)
        if registration.has_replaced_killed:
            release_database(self.database_path)
        self._seed_shared(is_home_usable=error is None)
        storage.is_in_memory = True
        stored = load_state(self.database_path, is_kept=True)
        if stored.mode == MEMORY and not storage.state.is_degraded:
            # Until the first copy, what an earlier agent reported is true.
            storage.state = stored
        if error is not None:
            self._set_unusable(self._describe_in_time(error))

    @property
    def is_home(self) -> bool:
        """Whether it is in the home directory."""
        return self.path.parent.parent == home_dir()

    @property
    def database_path(self) -> Path:
        """Path of the database."""
        return self.path / DATABASE_NAME

    @property
    def max_database_bytes(self) -> float:
        """Bytes that the history may take there."""
        return inf if self.is_home else _max_shared_bytes(self.path)

    @property
    def max_spool_bytes(self) -> float:
        """Bytes that records which the head has not acknowledged may take there."""
        if self.is_home:
            return inf
        room = shared_memory_room(self.path) - MAX_DATABASE_BYTES
        return max(room, self.max_database_bytes / 2)

    def publish_target(self) -> None:
        """Write the target for Prometheus, once the agent is registered."""
        if self._sync is not None:
            self._sync.wake()
            return
        try:
            self._registration.publish_target()
        except OSError as error:
            log.warning("Prometheus cannot discover this agent: %s", error)

    def note_opened(self) -> None:
        """Note that the database is open: from now on it is copied, and must stay there."""
        self._opened = self.database_path.stat()
        if not self.is_home:
            self._start_sync()

    def copy_soon(self) -> None:
        """Copy what was stored to the home directory without the usual delay. Never waits."""
        if self._sync is not None:
            self._sync.wake()

    def check(self) -> None:
        """Report to the storage if the agent must continue in another directory. Never waits."""
        now = monotonic()
        if now < self._check_at:
            return
        self._check_at = now + CHECK_INTERVAL_SECONDS
        if self._is_lost():
            error = DirectoryLostError(f"{self.path} was deleted or replaced")
            self._storage.request_move(StorageFailure(FailureKind.UNUSABLE, error))
        elif self._sync is not None:
            self._check_sync(self._sync)

    def release_reserve(self) -> None:
        """Give up the reserved space, for what must still be stored on a full disk."""
        if self.is_home:
            with suppress(OSError):
                (self.path / RESERVE_NAME).unlink(missing_ok=True)

    def rescue(self, connection: sqlite3.Connection) -> None:
        """Copy the open database to shared memory, for the next agent; it may be deleted or full.

        What other threads store afterwards is not in the copy.
        """
        if not self.is_home and not self._is_lost():
            return
        try:
            shared = shared_state_dir(self.run)
            save_state(shared / DATABASE_NAME, self._storage.state)
            copy_to_shared_memory(connection, shared / DATABASE_NAME, _max_shared_bytes(shared))
        except (OSError, sqlite3.Error) as error:
            log.warning("The database cannot be copied to shared memory: %s", error)

    def close(self, *, ended: bool) -> None:
        """Leave the directory; at the end of the run, remove what is in shared memory."""
        is_copied = self.is_home
        if self._sync is not None:
            is_copied = self._sync.finish(FINAL_COPY_SECONDS if ended else STOP_COPY_SECONDS)
        elif self.is_home:
            with suppress(OSError):
                self._registration.withdraw_target()
            if ended:
                with suppress(OSError):
                    (self.path / RESERVE_NAME).unlink(missing_ok=True)
        if ended and is_copied:
            with suppress(OSError):
                remove_shared_files(self.run)
        elif ended:
            log.error("Run %s stays in %s: its home directory is unusable", self.run, self.path)
        with suppress(OSError):
            self._registration.release()

    def _is_lost(self) -> bool:
        """Whether the database is no longer the file that was opened."""
        if self._opened is None:
            return False
        try:
            return not os.path.samestat(self.database_path.stat(), self._opened)
        except OSError:
            return True

    def _open_home(self) -> Path:
        """The directory in the home directory, with what is in shared memory."""
        directory, shared = run_dir(self.run), shared_state_dir(self.run)
        self._registration.lock_home(directory)
        self._registration.set_directory(shared)
        write_owner_host(self.run, os.uname().nodename)
        _make_reserve(directory)
        probe(directory)
        move_to_home(shared, directory, self._replace_home)
        return directory

    def _seed_shared(self, *, is_home_usable: bool) -> None:
        """Copy what an earlier agent stored in the home directory to shared memory."""
        path = self.database_path
        # Of its own name: the thread of a former agent may still wait for the disk.
        seed = self.path / f"{SEED_NAME}-{token_hex(8)}"
        for leftover in self.path.glob(f"{SEED_NAME}-*"):
            leftover.unlink(missing_ok=True)
        try:
            if is_home_usable:
                self._wait_for_home(lambda given_up: self._seed(path, seed, given_up))
            elif not path.exists():
                self._wait_for_home(lambda given_up: self._seed_unopened(seed, given_up))
            if seed.exists():
                restart_spool(seed)
                remove_database(path)
                seed.rename(path)
                (self.path / BEGUN_HERE_NAME).unlink(missing_ok=True)
        except (FileNotFoundError, NotADirectoryError):
            log.debug("Run %s has no database to continue", self.run)
        except (OSError, sqlite3.Error, database.NewerSchemaError) as error:
            if isinstance(error, sqlite3.OperationalError) and classify(error) is None:
                # It is locked: a later start may succeed.
                raise
            if not path.exists():
                log.warning("The database of an earlier agent cannot be read: %s", error)
                begin_in_shared_memory(path)

    def _seed(self, path: Path, seed: Path, given_up: threading.Event) -> None:
        """Copy the files of the run from the home directory, unless the newest are here already.

        The database is copied to `seed`. Once `given_up` is set, nothing more is done. Raises
        OSError, sqlite3.Error, NewerSchemaError and AlreadyServedError.
        """
        home = run_dir(self.run)
        self._lock_home(home)
        if any(home.glob("*.ring")):
            mark_home_rings(self.run)
        _copy_baselines(self.path)
        stored = home / DATABASE_NAME
        # A lost one is reported, see `open_storage`.
        is_known = _has_content(stored) or (home / SUMMARY_NAME).exists()
        is_here = _has_content(path)
        if not is_known or (is_here and newest_time(stored) <= newest_time(path)):
            return
        _raise_if(given_up)
        with closing(
            open_storage(stored, self._storage, self._counters, self._clock, None)
        ) as source:
            _copy_run(source, home, seed, given_up)
        self._note_replaced(home)

    def _seed_unopened(self, seed: Path, given_up: threading.Event) -> None:
        """Copy the files of the run from a home directory that cannot be written.

        Raises like `_seed`.
        """
        home = home_dir() / "runs" / self.run
        _copy_baselines(self.path)
        with closing(database.connect_read_only(home / DATABASE_NAME)) as source:
            _copy_run(source, home, seed, given_up)

    def _wait_for_home(self, work: Callable[[threading.Event], None]) -> None:
        """Do what uses the home directory, which may not respond. Raises what `work` raises.

        The event that `work` gets is set once that is no longer waited for.
        """
        errors: list[Exception] = []
        given_up = threading.Event()

        def run() -> None:
            try:
                work(given_up)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="sentinel-seed", daemon=True)
        thread.start()
        began_at = monotonic()
        while thread.is_alive() and monotonic() - began_at < SEED_TIMEOUT_SECONDS:
            thread.join(_JOIN_SECONDS)
            if self._registration.is_waiting:
                # For the process that closes the cases of the run.
                began_at = monotonic()
        if thread.is_alive():
            given_up.set()
            raise TimeoutError(errno.ETIMEDOUT, "it does not respond", str(home_dir()))
        if errors:
            raise errors[0]

    def _lock_home(self, home: Path) -> None:
        """Exclude agents that have another shared memory, as in another container."""
        if not self._mount.is_remote:
            self._registration.lock_home(home)

    def _replace_home(self, path: Path, error: Exception) -> None:
        """Put what can be read of a damaged database in the home directory into a new one."""
        replace_damaged(path, str(error), self._storage, self._counters, self._clock)
        self._note_replaced(path.parent)

    def _note_replaced(self, home: Path) -> None:
        """Note where the damaged database is, if one in the home directory was replaced."""
        state = self._storage.state
        if state.mode == REPLACED and state.set_aside:
            self._storage.state = replace(state, set_aside=str(home / state.set_aside))
            save_state(self.database_path, self._storage.state)

    def _start_sync(self) -> None:
        def open_home() -> Path:
            directory = run_dir(self.run)
            self._lock_home(directory)
            write_owner_host(self.run, os.uname().nodename)
            return directory

        def publish(directory: Path, is_last: bool) -> None:
            _copy_newer(self.path / BASELINES_NAME, home_dir() / BASELINES_NAME)
            if is_last:
                (directory / REGISTRATION_NAME).unlink(missing_ok=True)
                self._registration.withdraw_target()
            elif self._registration.is_registered:
                copy_file(self.path / REGISTRATION_NAME, directory / REGISTRATION_NAME)
                self._registration.publish_target()

        self._sync = HomeSync(self.path, open_home, publish, self._replace_home, self._retention)
        self._sync.start()

    def _check_sync(self, sync: HomeSync) -> None:
        problem = sync.problem
        if sync.is_hanging:
            problem = self._describe(TimeoutError(errno.ETIMEDOUT, "it does not respond"))
        if problem is not None:
            self._set_unusable(problem)
        elif sync.is_usable:
            self._set_usable()

    def _set_usable(self) -> None:
        state = self._storage.state
        if state.mode == MEMORY:
            log.info("%s can be used again", home_dir())
            self._problem = ""
            self._storage.state = StorageState(number=state.number)
            save_state(self.database_path, self._storage.state)

    def _describe(self, error: Exception) -> HomeProblem:
        # A file server may have been mounted there meanwhile.
        return describe_problem(error, is_local=not find_mount(home_dir()).is_remote)

    def _describe_in_time(self, error: Exception) -> HomeProblem:
        """Describe it in another thread, since the disk may not respond."""
        problems: list[HomeProblem] = []
        try:
            self._wait_for_home(lambda _: problems.append(self._describe(error)))
        except TimeoutError as timeout:
            return self._describe(timeout)
        return problems[0]

    def _set_unusable(self, problem: HomeProblem) -> None:
        error, reason, remedy = problem
        state, text = self._storage.state, f"{type(error).__name__}: {error}"
        if state.mode == MEMORY and text == self._problem:
            return
        self._problem = text
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
            folder=str(shared_state_dir(self.run)),
        )
        save_state(self.database_path, self._storage.state)


def _copy_run(
    source: sqlite3.Connection, home: Path, seed: Path, given_up: threading.Event
) -> None:
    """Copy the open database of `home` to `seed`, and the other files beside that.

    Once `given_up` is set, nothing stays or is copied. Raises OSError, sqlite3.Error.
    """
    copy_to_shared_memory(source, seed, _max_shared_bytes(seed.parent))
    if given_up.is_set():
        remove_database(seed)
    _raise_if(given_up)
    _copy_files(home, seed.parent)


def _raise_if(given_up: threading.Event) -> None:
    if given_up.is_set():
        raise TimeoutError(errno.ETIMEDOUT, "it responded too late", str(home_dir()))


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _max_shared_bytes(directory: Path) -> int:
    """Bytes that a database in shared memory may take."""
    return max(MIN_DATABASE_BYTES, min(shared_memory_room(directory), MAX_DATABASE_BYTES))


def remove_shared_files(run: str) -> None:
    """Remove what an ended run leaves in shared memory, but for what the home directory lacks.

    The marks of removed rings are moved there. Rings that no agent has read stay, with what the
    agent that reads them needs. Raises OSError if that is not possible.
    """
    fallback, directory = shared_state_dir(run), ring_dir(run)
    marks = sorted(fallback.glob(f"*{REMOVED_SUFFIX}"))
    home = run_dir(run) if marks and not find_mount(home_dir()).is_remote else None
    for mark in marks:
        if home is not None:
            (home / mark.name).touch(mode=0o600)
        mark.unlink()
    _remove_files(fallback)
    remove_launch_files(run)
    for each in (fallback, directory):
        # Not empty while another agent has files in it.
        with suppress(OSError):
            each.rmdir()


def _remove_files(fallback: Path) -> None:
    """Remove the files of a run directory in shared memory, the database last."""
    for name in (BASELINES_NAME, INSIGHT_NAME):
        shutil.rmtree(fallback / name, ignore_errors=True)
    database_path = fallback / DATABASE_NAME
    of_database = database_files(database_path)
    for path in fallback.iterdir():
        if path not in of_database and not path.name.endswith(REMOVED_SUFFIX):
            path.unlink(missing_ok=True)
    remove_database(database_path)


def _copy_files(home: Path, directory: Path) -> None:
    """Copy what earlier agents and users stored besides the database, as far as it can be read."""
    for path in home.iterdir():
        if path.suffix in {".json", ".log"} and path.name != REGISTRATION_NAME and path.is_file():
            try:
                copy_file(path, directory / path.name)
            except OSError as error:
                log.warning("%s cannot be copied to shared memory: %s", path, error)
    try:
        copy_artifacts(home, directory, MAX_SEED_ARTIFACT_BYTES)
    except OSError as error:
        log.warning("Results of insight cannot be copied to shared memory: %s", error)


def move_to_home(
    shared: Path,
    home: Path,
    replace: Callable[[Path, Exception], object] = replace_with_nothing,
) -> None:
    """Move what an agent left in shared memory, unless the home directory has something newer.

    The caller holds the locks of both directories. A database that is older is set aside in the
    home directory. Raises OSError, sqlite3.Error, NewerSchemaError.
    """
    path, stored = shared / DATABASE_NAME, home / DATABASE_NAME
    if not path.exists():
        return
    # One of an earlier version is migrated.
    database.connect(path).close()
    if stored.exists() and newest_time(path) < _newest_time(stored):
        shutil.copy(path, set_aside_path(stored))
    else:
        copy_run_directory(shared, home, replace)
    _remove_files(shared)


def _newest_time(stored: Path) -> float:
    """`newest_time`; 0 for a database that `copy_run_directory` replaces."""
    try:
        return newest_time(stored)
    except (sqlite3.DatabaseError, database.NewerSchemaError) as error:
        if isinstance(error, sqlite3.Error) and classify(error) is not FailureKind.DAMAGED:
            raise
        return 0.0


def _copy_baselines(directory: Path) -> None:
    """Copy the trajectories of healthy runs, as far as they can be read."""
    try:
        _copy_newer(home_dir() / BASELINES_NAME, directory / BASELINES_NAME)
    except OSError as error:
        log.warning("Baselines cannot be copied to shared memory: %s", error)


def _copy_newer(source: Path, target: Path) -> None:
    """Copy the JSON files that are newer in a directory than in another. Raises OSError."""
    for path in source.glob("*.json"):
        copy = target / path.name
        if not copy.exists() or copy.stat().st_mtime < path.stat().st_mtime:
            target.mkdir(mode=0o700, exist_ok=True)
            copy_file(path, copy)


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


def probe(directory: Path) -> None:
    """Write a file and remove it. Raises OSError."""
    path = directory / f".probe-{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, bytes(_PROBE_BYTES))
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)
