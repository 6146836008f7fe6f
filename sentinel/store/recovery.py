"""Sets a damaged database aside, and begins a new one.

The damaged file is kept for inspection, with its write-ahead log, as `sentinel.db.corrupt-<time>`.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from sentinel.model.counters import Counters
from sentinel.model.storage_state import REPLACED, StorageState
from sentinel.store import database
from sentinel.store.storage_monitor import FailureKind, StorageMonitor, classify

log = logging.getLogger(__name__)

MAX_SET_ASIDE = 3
"""Damaged databases that are kept: the newest ones."""

_COMPANIONS = ("-wal", "-shm")
_SET_ASIDE = re.compile(r"\.corrupt-(\d+)(?:-(\d+))?$")


def open_storage(
    path: Path,
    storage: StorageMonitor,
    counters: Counters,
    clock: Callable[[], float] = time.time,
) -> sqlite3.Connection:
    """Open the database; a damaged one is replaced, counted, and reported in `storage.state`.

    Raises NewerSchemaError, and sqlite3.OperationalError if the file is locked or its directory
    cannot be used: the database is intact then, and a later start may succeed.
    """
    failure = storage.pop_failure()
    if failure is None or failure.kind is not FailureKind.DAMAGED:
        try:
            return database.connect(path)
        except sqlite3.DatabaseError as error:
            if classify(error) is not FailureKind.DAMAGED:
                raise
            reason = str(error)
    else:
        reason = str(failure.error)
    return _replace(path, reason, storage, counters, clock)


def _replace(
    path: Path,
    reason: str,
    storage: StorageMonitor,
    counters: Counters,
    clock: Callable[[], float],
) -> sqlite3.Connection:
    moved = set_aside(path)
    connection = database.connect(path)
    recovered = "nothing"
    log.error("The database is damaged (%s); kept as %s, and a new one begun", reason, moved)
    counters.add("sentinel_dropped_records_total", "database_corrupt")
    storage.state = StorageState(
        REPLACED,
        reason,
        clock(),
        "Check the disk and the file system of the run directory, then delete the set-aside file.",
        set_aside="" if moved is None else moved.name,
        recovered=recovered,
        number=storage.state.number + 1,
    )
    return connection


def set_aside(path: Path) -> Path | None:
    """Rename the database and its write-ahead log; delete all set-aside ones but the newest.

    Returns the new path, or None if there was no file.
    """
    moved: Path | None = _free_name(path)
    assert moved is not None
    try:
        path.rename(moved)
    except FileNotFoundError:
        moved = None
    for suffix in _COMPANIONS:
        companion = path.with_name(path.name + suffix)
        if moved is None:
            companion.unlink(missing_ok=True)
        elif companion.exists():
            companion.rename(moved.with_name(moved.name + suffix))
    for old in set_aside_files(path)[:-MAX_SET_ASIDE]:
        for suffix in ("", *_COMPANIONS):
            old.with_name(old.name + suffix).unlink(missing_ok=True)
    return moved


def set_aside_files(path: Path) -> list[Path]:
    """The damaged databases that are kept, the newest last."""
    found = [
        (tuple(int(part or 0) for part in match.groups()), each)
        for each in path.parent.glob(f"{path.name}.corrupt-*")
        if (match := _SET_ASIDE.search(each.name))
    ]
    return [each for _, each in sorted(found)]


def _free_name(path: Path) -> Path:
    base = f"{path.name}.corrupt-{int(time.time())}"
    candidates = (base if not number else f"{base}-{number}" for number in range(1000))
    return next(found for name in candidates if not (found := path.with_name(name)).exists())
