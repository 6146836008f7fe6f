"""Checks the database in the background, and writes what is committed to the disk itself."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from sentinel.model.storage_state import REPLACED
from sentinel.store.recovery import load_state
from sentinel.store.storage_monitor import DamagedContentError, StorageMonitor

SYNC_INTERVAL_SECONDS = 5.0
"""Longest time for which committed records are not on the disk itself."""
CHECK_INTERVAL_SECONDS, CHECK_SHARE = 30.0, 0.01
"""Least time between two checks, and the share of the time that they may take."""
_LOWEST_PRIORITY = 19
_OPERATIONS_PER_CALL = 20_000
"""Operations of SQLite between two tests whether the check must end."""


class StorageKeeper:
    """Runs `quick_check` again and again, and syncs the write-ahead log; errors go to `storage`.

    It has a thread and a connection of its own, so that the agent's loop waits for neither.
    """

    def __init__(self, path: Path, storage: StorageMonitor) -> None:
        self._path, self._storage = path, storage
        self._stopping = threading.Event()
        self._synced: tuple[int, int] | None = None

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="storage-keeper", daemon=True).start()

    def stop(self) -> None:
        """End the thread soon, without waiting for it."""
        self._stopping.set()

    def _run(self) -> None:
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        check_at = 0.0
        while True:
            began = time.monotonic()
            if began >= check_at:
                self._report_errors(self.check)
                ended = time.monotonic()
                check_at = ended + max(CHECK_INTERVAL_SECONDS, (ended - began) / CHECK_SHARE)
            if self._stopping.wait(SYNC_INTERVAL_SECONDS):
                return
            self._report_errors(self.sync)
            self._report_errors(self._forget_deleted)

    def _report_errors(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            # One that passes, such as that of a locked database, must not end the thread.
            if not self._stopping.is_set():
                self._storage.report(error)

    def check(self) -> None:
        """Raise DamagedContentError for what `quick_check` finds."""
        with closing(sqlite3.connect(self._path, timeout=10.0)) as connection:
            connection.set_progress_handler(self._stopping.is_set, _OPERATIONS_PER_CALL)
            ((found,),) = connection.execute("pragma quick_check(1)").fetchall()
        if found != "ok":
            raise DamagedContentError(f"quick_check: {found}")

    def sync(self) -> None:
        """Write what is committed to the disk itself, if it changed since the last call."""
        with suppress(FileNotFoundError):
            descriptor = os.open(f"{self._path}-wal", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                status = os.fstat(descriptor)
                version = (status.st_size, status.st_mtime_ns)
                if version != self._synced:
                    os.fsync(descriptor)
                    self._synced = version
            finally:
                os.close(descriptor)

    def _forget_deleted(self) -> None:
        """The storage is complete again once the set-aside database is deleted."""
        if self._storage.state.mode == REPLACED:
            stored = load_state(self._path)
            if not stored.is_degraded and stored.number == self._storage.state.number:
                self._storage.state = stored
