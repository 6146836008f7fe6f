"""Copies the run directory from shared memory to the home directory, from time to time.

Any disk may stop responding. The agent therefore works in shared memory, and only this thread,
which may wait for the disk, uses the home directory.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic

from sentinel.agent.home_problem import HomeProblem, describe_problem
from sentinel.agent.registration import REGISTRATION_NAME
from sentinel.store.artifact import copy_artifacts
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.store.relocation import (
    BEGUN_HERE_NAME,
    STAGED_PREFIX,
    copy_to_home,
    replace_with_nothing,
)
from sentinel.store.retention import HistoryRetention
from sentinel.store.storage_monitor import classify
from sentinel.transport.paths import AGENT_LOCK, DATABASE_NAME, is_home_remote
from sentinel.transport.replaced_file import replacing

log = logging.getLogger(__name__)

THREAD_NAME = "sentinel-home"
SEED_NAME = "seed.db"
"""Name of a database that is being copied from the home directory."""
SYNC_INTERVAL_SECONDS = 5.0
"""Interval between copies: history that a power failure can cost at most."""
MAX_SYNC_SHARE = 0.02
"""Share of the time that copies may take; their interval is longer if they take long."""
MAX_PAUSE_SECONDS = 30.0
"""Longest interval between copies, after one that waited for the disk."""
HANG_SECONDS = 120.0
"""A disk or file server that takes longer than this for one copy does not respond. Nothing but the
copy waits for it, and a disk to which checkpoints are written may take tens of seconds. Linux warns
of a process that waits for a disk after the same time (`kernel.hung_task_timeout_secs`)."""
THINNING_SECONDS = 0.5
"""Longest time that one copy thins the history in the home directory; the last one longer."""
MAX_FINISH_SECONDS = 2.0
_NOT_COPIED = (
    f"{DATABASE_NAME}-",
    BEGUN_HERE_NAME,
    SEED_NAME,
    STAGED_PREFIX,
    AGENT_LOCK,
    REGISTRATION_NAME,
    ".",
)
"""Beginnings of the names of files that stay in shared memory, besides the database."""


class HomeSync(threading.Thread):
    """A thread that copies `source` to the directory that `open_home` returns.

    `replace` gets a database there that cannot be read, see `copy_to_home`. `retention` makes the
    retention of the history there. `on_copied` is called after each copy, in the same thread, with
    the directory and whether it was the last copy. The first copy begins at once.
    """

    def __init__(
        self,
        source: Path,
        open_home: Callable[[], Path],
        on_copied: Callable[[Path, bool], None],
        replace: Callable[[Path, Exception], object],
        retention: Callable[[History], HistoryRetention],
    ) -> None:
        super().__init__(name=THREAD_NAME, daemon=True)
        self._source, self._open_home, self._on_copied = source, open_home, on_copied
        self._replace, self._retention = replace, retention
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._began_at: float | None = None
        self._problem: HomeProblem | None = None
        self._failed_since: float | None = None
        self._is_usable = False

    def wake(self) -> None:
        """Copy as soon as `MAX_SYNC_SHARE` permits. Never waits."""
        self._wake.set()

    @property
    def is_hanging(self) -> bool:
        """Whether the copy under way takes too long."""
        began_at = self._began_at
        return began_at is not None and monotonic() - began_at > HANG_SECONDS

    @property
    def problem(self) -> HomeProblem | None:
        """Why the last finished copy failed.

        None for `HANG_SECONDS` if it only found the database locked, as by a command that reads it.
        """
        problem, since = self._problem, self._failed_since
        error = None if problem is None else problem.error
        is_locked = isinstance(error, sqlite3.OperationalError) and classify(error) is None
        return None if is_locked and monotonic() - (since or 0.0) < HANG_SECONDS else problem

    @property
    def is_usable(self) -> bool:
        """Whether the last finished copy was made, without a long wait for the disk."""
        return self._is_usable

    def finish(self, timeout: float) -> bool:
        """Copy once more and end the thread; whether that was done within `timeout` seconds."""
        self._stopping.set()
        self._wake.set()
        self.join(timeout)
        return not self.is_alive() and self._problem is None

    def run(self) -> None:
        """Copy until `finish` is called."""
        while True:
            self._wake.clear()
            is_last = self._stopping.is_set()
            self._began_at = began_at = monotonic()
            try:
                self._copy(is_last=is_last)
                self._problem = self._failed_since = None
                self._is_usable = monotonic() - began_at < HANG_SECONDS
            except Exception as error:
                # Whatever it is: a thread that ended would count as a copy that was made.
                if self._problem is None:
                    log.warning("The run directory cannot be copied to the home: %s", error)
                    self._failed_since = monotonic()
                self._problem = describe_problem(error, is_local=not is_home_remote())
                self._is_usable = False
            self._began_at = None
            if is_last:
                return
            pause = min((monotonic() - began_at) / MAX_SYNC_SHARE, MAX_PAUSE_SECONDS)
            if not self._stopping.wait(pause):
                self._wake.wait(max(0.0, SYNC_INTERVAL_SECONDS - pause))

    def _copy(self, *, is_last: bool) -> None:
        home = self._open_home()
        copy_run_directory(self._source, home, replace=self._replace)
        self._on_copied(home, is_last)
        with closing(connect(home / DATABASE_NAME, "delete")) as connection:
            retention = self._retention(History(connection))
            if is_last:
                retention.finish(MAX_FINISH_SECONDS)
            else:
                retention.run_slice(THINNING_SECONDS)


def copy_run_directory(
    source: Path,
    home: Path,
    replace: Callable[[Path, Exception], object] = replace_with_nothing,
) -> None:
    """Copy the database and the other files of the run directory. Raises OSError, sqlite3.Error."""
    database = source / DATABASE_NAME
    if database.exists():
        copy_to_home(database, home / DATABASE_NAME, replace)
    for path in source.iterdir():
        if path.is_file() and path.name != DATABASE_NAME and not path.name.startswith(_NOT_COPIED):
            _copy_if_changed(path, home / path.name)
    copy_artifacts(source, home)


def copy_file(path: Path, copy: Path) -> None:
    """Copy a file, such that a reader sees the former content or the new one. Raises OSError."""
    with replacing(copy) as temporary:
        shutil.copy2(path, temporary)


def _copy_if_changed(path: Path, copy: Path) -> None:
    with suppress(FileNotFoundError):
        status = path.stat()
        with suppress(FileNotFoundError):
            known = copy.stat()
            if (known.st_size, known.st_mtime_ns) == (status.st_size, status.st_mtime_ns):
                return
        copy_file(path, copy)
