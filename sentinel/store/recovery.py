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
from typing import Literal

from sentinel.model.counters import Counters
from sentinel.model.storage_state import REPLACED, StorageState
from sentinel.store import database
from sentinel.store.run_summary import SUMMARY_NAME
from sentinel.store.salvage import Salvage, salvage
from sentinel.store.storage_monitor import FailureKind, StorageMonitor, classify

log = logging.getLogger(__name__)

STATE_NAME = "storage.json"
MAX_SET_ASIDE = 3
"""Damaged databases that are kept: the newest ones."""

REPEATED_WITHIN_SECONDS = 120.0
"""Time within which the next damage is taken for the same."""

_COMPANIONS = ("-wal", "-shm", "-journal")
_LOGS = ("-wal", "-journal")
"""Companions that hold a part of the content."""
_SET_ASIDE = re.compile(r"\.corrupt-(\d+)$")


def open_storage(
    path: Path,
    storage: StorageMonitor,
    counters: Counters,
    clock: Callable[[], float] = time.time,
    journal_mode: Literal["wal"] | None = "wal",
) -> sqlite3.Connection:
    """Open the database; a damaged one is replaced, counted, and reported in `storage.state`.

    So is one that a later version of sentinel wrote, which is set aside unchanged, and an empty or
    missing file where there was a database. Raises
    sqlite3.OperationalError if the file is locked or its directory cannot be used: the database is
    intact then, and a later start may succeed.
    """
    failure = storage.pop_failure(FailureKind.DAMAGED)
    if not storage.state.is_degraded:
        storage.state = load_state(path)
    if failure is None:
        if reason := _loss(path):
            path.touch()
            replace_damaged(path, reason, storage, counters, clock)
        try:
            return database.connect(path, journal_mode)
        except sqlite3.DatabaseError as error:
            if classify(error) is not FailureKind.DAMAGED:
                raise
            reason = str(error)
        except (database.NewerSchemaError, UnicodeDecodeError) as error:
            # The latter is raised for an error whose message quotes a damaged name.
            reason = str(error)
    else:
        reason = str(failure.error)
    replace_damaged(path, reason, storage, counters, clock)
    return database.connect(path, journal_mode)


def _loss(path: Path) -> str:
    """Why SQLite would take a lost database for a new one; "" if it is a new one.

    An agent writes the summary once it has a database.
    """
    if not path.with_name(SUMMARY_NAME).exists():
        return ""
    try:
        return "" if path.stat().st_size else "the file is empty"
    except FileNotFoundError:
        return "the file is missing"


def replace_damaged(
    path: Path,
    reason: str,
    storage: StorageMonitor,
    counters: Counters,
    clock: Callable[[], float],
) -> None:
    """Set the database aside and begin a new one with what can be read of it; see `open_storage`.

    It has no write-ahead log yet: that needs mapped memory, and a disk that does not respond would
    then stop every thread. Raises sqlite3.Error, OSError.
    """
    reason = " ".join(reason.split())
    log.error("The database cannot be read (%s); a new one is begun", reason)
    now, last = clock(), load_state(path, is_kept=True)
    moved = set_aside(path)
    database.connect(path, "delete").close()
    found = Salvage()
    # What was copied may be what is damaged, so less is copied if it happens again soon.
    repeats = last.repeats + 1 if 0 <= now - last.since < REPEATED_WITHIN_SECONDS else 0
    if moved is not None and repeats <= 1:
        found = salvage(moved, path, only_notifications=repeats == 1)
    log.warning("That database is kept as %s; in the new one: %s", moved, found.text)
    counters.add("sentinel_dropped_records_total", "database_corrupt")
    storage.reads_again_until = 0.0 if found.has_state else now
    storage.state = StorageState(
        REPLACED,
        reason,
        now,
        f"Check the disk, then delete {moved}.",
        set_aside="" if moved is None else moved.name,
        recovered=found.text,
        number=max(storage.state.number, last.number) + 1,
        repeats=repeats,
    )
    save_state(path, storage.state)


def save_state(path: Path, state: StorageState) -> None:
    """Write `storage.json` beside the database, if that is possible."""
    with suppress(OSError):
        _state_path(path).write_text(json.dumps(asdict(state)))


def load_state(path: Path, *, is_kept: bool = False) -> StorageState:
    """What `storage.json` states of a replaced database; `ok` once the set-aside file is deleted.

    With `is_kept` it is what the file states, whatever that is.
    """
    try:
        state = StorageState(**json.loads(_state_path(path).read_text()))
        if state.mode == REPLACED:
            is_kept = is_kept or (path.parent / str(state.set_aside)).is_file()
        return state if is_kept else StorageState(number=int(state.number))
    except (OSError, ValueError, TypeError):
        return StorageState()


def _state_path(path: Path) -> Path:
    return path.with_name(STATE_NAME)


def set_aside(path: Path) -> Path | None:
    """Rename the database and its logs; delete all set-aside ones but the newest.

    Returns the new path, or None if there was no file.
    """
    moved = set_aside_path(path)
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    try:
        path.rename(moved)
    except FileNotFoundError:
        for suffix in _LOGS:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return None
    for suffix in _LOGS:
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(moved.with_name(moved.name + suffix))
    for old in set_aside_files(path)[:-MAX_SET_ASIDE]:
        for suffix in ("", *_COMPANIONS):
            old.with_name(old.name + suffix).unlink(missing_ok=True)
    return moved


def set_aside_files(path: Path) -> list[Path]:
    """The damaged databases that are kept, the newest last."""
    return [each for _, each in _numbered(path)]


def _numbered(path: Path) -> list[tuple[int, Path]]:
    return sorted(
        (int(match[1]), each)
        for each in path.parent.glob(f"{path.name}.corrupt-*")
        if (match := _SET_ASIDE.search(each.name))
    )


def set_aside_path(path: Path) -> Path:
    """Name under which a database is set aside: the time in seconds, after that of the newest."""
    newest = max((number for number, _ in _numbered(path)), default=0)
    return path.with_name(f"{path.name}.corrupt-{max(int(time.time()), newest + 1)}")
