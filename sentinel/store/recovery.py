"""Sets a damaged database aside, and begins a new one with what can be read of it.

The damaged file is kept for inspection, with its write-ahead log, as `sentinel.db.corrupt-<time>`.
`storage.json` beside it states that until the file is deleted.
"""

from __future__ import annotations

import json
import logging
import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from sentinel.model.counters import Counters
from sentinel.model.storage_state import REPLACED, StorageState
from sentinel.store import database
from sentinel.store.salvage import Salvage, salvage
from sentinel.store.storage_monitor import FailureKind, StorageMonitor, classify

log = logging.getLogger(__name__)

STATE_NAME = "storage.json"
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
    failure = storage.pop_failure(FailureKind.DAMAGED)
    if not storage.state.is_degraded:
        storage.state = load_state(path)
    if failure is None:
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
    log.error("The database is damaged (%s); a new one is begun", reason)
    moved = set_aside(path)
    database.connect(path).close()
    found = Salvage() if moved is None else salvage(moved, path)
    log.warning("The damaged database is kept as %s; in the new one: %s", moved, found.text)
    counters.add("sentinel_dropped_records_total", "database_corrupt")
    now = clock()
    storage.reads_again_until = 0.0 if found.has_state else now
    storage.state = StorageState(
        REPLACED,
        reason,
        now,
        f"Check the disk, then delete {moved}.",
        set_aside="" if moved is None else moved.name,
        recovered=found.text,
        number=max(storage.state.number, load_state(path, is_kept=True).number) + 1,
    )
    save_state(path, storage.state)
    return database.connect(path)


def save_state(path: Path, state: StorageState) -> None:
    """Write `storage.json` beside the database, if that is possible."""
    with suppress(OSError):
        _state_path(path).write_text(json.dumps(asdict(state)))


def load_state(path: Path, *, is_kept: bool = False) -> StorageState:
    """What `storage.json` states; `ok` once the set-aside file is deleted, unless `is_kept`."""
    try:
        state = StorageState(**json.loads(_state_path(path).read_text()))
        is_kept = is_kept or path.with_name(str(state.set_aside)).is_file()
        return state if is_kept else StorageState(number=int(state.number))
    except (OSError, ValueError, TypeError):
        return StorageState()


def _state_path(path: Path) -> Path:
    return path.with_name(STATE_NAME)


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
        if moved is None or suffix == "-shm":
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
