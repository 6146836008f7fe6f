"""Copies the run directory to a home directory on a file server, from time to time.

Such a server may hang, and SQLite's write-ahead log does not work there. The agent therefore works
in shared memory, and only this thread, which may hang with the server, uses the home directory.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Literal

from sentinel.agent.registration import REGISTRATION_NAME
from sentinel.insight.artifact import copy_artifacts
from sentinel.store.relocation import merge_into_home
from sentinel.transport.paths import AGENT_LOCK, DATABASE_NAME

log = logging.getLogger(__name__)

SEED_NAME = "seed.db"
"""Name of a database that is being copied from the home directory."""
SYNC_INTERVAL_SECONDS = 5.0
"""Interval between copies: history that a power failure can cost at most."""
HANG_SECONDS = 5.0
"""A server that takes longer than this for one copy does not answer."""


class HomeSync:
    """A thread that copies `source` to the directory that `open_home` returns.

    `on_copied` is called after each copy, in the same thread, with the directory and whether it was
    the last copy. The first copy begins at once.
    """

    def __init__(
        self,
        source: Path,
        open_home: Callable[[], Path],
        on_copied: Callable[[Path, bool], None],
    ) -> None:
        self._source, self._open_home, self._on_copied = source, open_home, on_copied
        self._wake, self._idle = threading.Event(), threading.Event()
        self._stopping = False
        self._began_at: float | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="sentinel-home", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_hanging(self) -> bool:
        """Whether the copy under way takes too long."""
        began_at = self._began_at
        return began_at is not None and monotonic() - began_at > HANG_SECONDS

    @property
    def error(self) -> Exception | None:
        """Error of the last finished copy."""
        return self._error

    def finish(self, timeout: float) -> bool:
        """Copy once more and end the thread; whether that was done within `timeout` seconds."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout)
        return not self._thread.is_alive() and self._error is None

    def _run(self) -> None:
        while True:
            is_last = self._stopping
            self._began_at = monotonic()
            try:
                home = self._open_home()
                copy_to_home(self._source, home, "delete")
                self._on_copied(home, is_last)
                self._error = None
            except Exception as error:
                # Whatever it is: a thread that ended would count as a copy that was made.
                if self._error is None:
                    log.warning("The run directory cannot be copied to the home: %s", error)
                self._error = error
            self._began_at = None
            if is_last:
                return
            self._wake.wait(SYNC_INTERVAL_SECONDS)


def copy_to_home(source: Path, home: Path, journal_mode: Literal["wal", "delete"] = "wal") -> None:
    """Copy the database and the other files of the run directory. Raises OSError, sqlite3.Error."""
    database = source / DATABASE_NAME
    if database.exists():
        merge_into_home(database, home / DATABASE_NAME, journal_mode)
    excluded = (DATABASE_NAME, SEED_NAME, AGENT_LOCK, REGISTRATION_NAME, ".")
    for path in source.iterdir():
        if path.is_file() and not path.name.startswith(excluded):
            shutil.copy(path, home / path.name)
    copy_artifacts(source, home)
