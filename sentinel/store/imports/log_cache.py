"""Imported logs: a directory each in the user's cache.

An import writes a database of its own, and is shown while it grows if there is nothing older. It
replaces the older one when it is complete. A process that was killed leaves a database that is not
complete: the next import begins anew and removes it. The lock of a directory is held by the process
that imports, so that several servers share the result.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sentinel import __version__
from sentinel.config.settings import Settings, build_detectors
from sentinel.model.json_safe import parse_object
from sentinel.readers.log_folder import log_files
from sentinel.store.database import SCHEMA_VERSION, connect
from sentinel.transport.paths import is_locked, private_cache_dir
from sentinel.transport.replaced_file import replace_file

MAX_CACHE_BYTES = 2 << 30
MAX_CACHE_ENTRIES = 1000
"""Limits above which the logs that were viewed longest ago are deleted."""
MIN_KEPT_SECONDS = 3600.0
"""A log that was viewed within this time is never deleted."""
LOCK_TRIES, LOCK_RETRY_SECONDS = 10, 0.05
"""A server that asks whether the lock is held has it for a moment."""

_STATE_NAME, _LOCK_NAME, _USED_NAME = "import.json", "lock", "used"
_DATABASE_SUFFIX = ".db"
_LEADING_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class ImportState:
    """What was imported of a log.

    `database` is a name in the directory, "" before the first import. `signature` is that of the
    files when they were read. `is_complete` is whether the log was read to its end, `is_ended`
    whether it was taken to be complete itself. `problem` is why it cannot be read.
    """

    database: str = ""
    signature: str = ""
    is_complete: bool = False
    is_ended: bool = False
    records: int = 0
    problem: str = ""
    seconds: float = 0.0
    """What the import took."""
    ended_database: str = ""
    """The same log with its end judged, which holds from `settles_at` on if it does not change."""
    settles_at: float = 0.0
    """In seconds since the epoch."""

    def is_of(self, signature: str) -> bool:
        """Whether the log was read to its end when its files had that signature."""
        return self.is_complete and self.signature == signature

    def at(self, now: float) -> ImportState:
        """The state at a time: a log that stays unchanged ends without another import."""
        if not self.ended_database or now < self.settles_at:
            return self
        return replace(self, database=self.ended_database, ended_database="", is_ended=True)


class CacheEntry:
    """The directory of one log with certain settings; nothing is created before `prepare`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def prepare(self) -> None:
        """Create the directory, and note that it is used. Raises OSError."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.directory / _USED_NAME).touch()

    def read(self) -> ImportState:
        """The state; the default one before the first import, or if it cannot be read."""
        try:
            values = parse_object((self.directory / _STATE_NAME).read_text())
            return ImportState(**values).at(time.time())
        except (OSError, ValueError, TypeError):
            return ImportState()

    def write(self, state: ImportState) -> None:
        """Replace the state. Raises OSError."""
        replace_file(self.directory / _STATE_NAME, json.dumps(asdict(state)).encode())

    def database(self, state: ImportState) -> Path | None:
        """The database of that state; None if there is none."""
        path = self.directory / state.database
        return path if state.database and path.is_file() else None

    def empty_database(self) -> Path:
        """A database without rows, for a log that cannot be read. Raises OSError, sqlite3.Error."""
        path = self.directory / f"empty{_DATABASE_SUFFIX}"
        connect(path).close()
        return path

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Hold the lock of the importing process; whether it was free."""
        descriptor = os.open(
            self.directory / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            yield _try_lock(descriptor)
        finally:
            os.close(descriptor)

    def is_importing(self) -> bool:
        """Whether a process imports or follows the log now."""
        try:
            return is_locked(self.directory / _LOCK_NAME)
        except OSError:
            return True

    def has_newer_import(self, state: ImportState) -> bool:
        """Whether another import than that of the state was begun after it."""
        names = (path.name for path in self.directory.glob(f"[0-9]*{_DATABASE_SUFFIX}"))
        return any(_import_number(name) > _import_number(state.database) for name in names)

    def remove_databases(self, kept: str) -> None:
        """Remove the databases of other imports than that of the database of this name."""
        for path in self.directory.glob("[0-9]*"):
            if not kept or _import_number(path.name) != _import_number(kept):
                path.unlink(missing_ok=True)


class LogCache:
    """The imported logs of a user, below `root`."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = _default_root() if root is None else root

    def entry(self, path: Path, run: str, settings: Settings) -> CacheEntry:
        """The entry of a log that is shown as `run`; another one for other settings or versions."""
        parts = (os.fsencode(path.absolute()), run.encode(), _fingerprint(settings).encode())
        return CacheEntry(self.root / hashlib.sha256(b"\0".join(parts)).hexdigest()[:40])

    def prune(
        self,
        max_bytes: int = MAX_CACHE_BYTES,
        max_entries: int = MAX_CACHE_ENTRIES,
        now: float | None = None,
    ) -> None:
        """Delete the entries that were used longest ago, until the limits are kept."""
        now = time.time() if now is None else now
        entries = sorted(_used_entries(self.root), key=lambda each: each[0], reverse=True)
        total = 0
        for count, (used, size, directory) in enumerate(entries, 1):
            total += size
            is_above = total > max_bytes or count > max_entries
            if is_above and now - used > MIN_KEPT_SECONDS:
                entry = CacheEntry(directory)
                with suppress(OSError):
                    if not entry.is_importing():
                        shutil.rmtree(directory)


def new_database_name() -> str:
    """The name of the database of an import that begins now."""
    return f"{time.time_ns()}{_DATABASE_SUFFIX}"


def open_database_name(database: str) -> str:
    """The name of the second database of that import, in which the log has no end yet."""
    return f"{_import_number(database)}-open{_DATABASE_SUFFIX}"


def _import_number(database: str) -> int:
    """The number of an import, which grows; it begins the names of its databases."""
    match = _LEADING_NUMBER.match(database)
    return int(match[0]) if match else 0


def log_signature(path: Path) -> str:
    """Size and modification time of the files of a log: it is unchanged while this is the same."""
    parts = []
    for file in log_files(path):
        with suppress(OSError):
            status = file.stat()
            parts.append((str(file), status.st_ino, status.st_size, status.st_mtime_ns))
    return hashlib.sha256(repr(sorted(parts)).encode()).hexdigest()


def _default_root() -> Path:
    """The user's cache, or a temporary directory if that cannot be used. Raises OSError."""
    try:
        return private_cache_dir("logs")
    except (OSError, RuntimeError):
        return Path(tempfile.mkdtemp(prefix="sentinel-logs-"))


def _try_lock(descriptor: int) -> bool:
    """Lock the file; whether no other process holds the lock."""
    for attempt in range(LOCK_TRIES):
        if attempt:
            time.sleep(LOCK_RETRY_SECONDS)
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def _fingerprint(settings: Settings) -> str:
    """What an import depends on beside the log."""
    detectors = sorted((name, repr(make())) for name, make in build_detectors(settings).items())
    parts = (__version__, SCHEMA_VERSION, detectors, dict(settings.keys), settings.max_samples)
    return repr(parts)


def _used_entries(root: Path) -> Iterator[tuple[float, int, Path]]:
    """When each entry was used, its size, and its directory."""
    with suppress(OSError):
        for directory in root.iterdir():
            with suppress(OSError):
                used = (directory / _USED_NAME).stat().st_mtime
                size = sum(file.stat().st_size for file in directory.iterdir())
                yield used, size, directory
