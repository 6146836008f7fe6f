"""The process that imports logs into the cache, or one that it then follows while it grows.

It has a limit of memory: what a damaged or hostile log does to it, it does not do to the server
that started it. In the background its priority is low.
"""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from sentinel.config.settings import Settings, load_replay_settings
from sentinel.pipeline.onset_process import child_environment
from sentinel.readers.log_file import read_error_text
from sentinel.store.database import connect
from sentinel.store.imports.log_cache import (
    CacheEntry,
    ImportState,
    LogCache,
    log_signature,
    new_database_name,
    open_database_name,
)
from sentinel.store.imports.log_import import SETTLED_SECONDS, LogImport, is_settled, last_written
from sentinel.store.run_reader import RunReader

STATE_SECONDS = 0.5
"""Interval at which the progress of an import is written."""
SIGNATURE_SECONDS = 1.0
"""Interval at which the files of a followed log are examined."""
MAX_MEMORY_BYTES = 4 << 30
"""Address space of the process."""
WAIT_SECONDS = 0.2

_NICENESS = 10
_SCRIPT = "from sentinel.store.imports.log_worker import main; main()"


@dataclass(frozen=True, slots=True)
class ImportJob:
    """A log, the name of its run, and the directory of its cache entry."""

    directory: str
    path: str
    run: str


def start_worker(jobs: Sequence[ImportJob], *, is_followed: bool) -> subprocess.Popen[bytes]:
    """Start a process that imports these logs one after the other; a single one can be followed.

    It ends after the log in hand when its input is closed, and writes a line to its output whenever
    it has written the state of an import. It reads the settings from where this process has them.
    Raises OSError.
    """
    arguments = ["follow" if is_followed else "import", json.dumps([astuple(job) for job in jobs])]
    return subprocess.Popen(  # noqa: S603 - our own command line
        [sys.executable, "-P", "-c", _SCRIPT, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(),
    )


def main() -> None:
    """Import the logs that the arguments name; see `start_worker`."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    mode, jobs = sys.argv[1:]
    if mode != "follow":
        # No process waits for these.
        os.nice(_NICENESS)
    settings = load_replay_settings()
    for job in (ImportJob(*fields) for fields in json.loads(jobs)):
        entry, path = CacheEntry(Path(job.directory)), Path(job.path)
        entry.prepare()
        with entry.lock() as is_free:
            if is_free and mode == "follow":
                _importer(entry, path, job, settings).run(_wait_for_parent)
            elif is_free and not is_imported(entry.read(), path):
                _importer(entry, path, job, settings).run()
        if not _wait_for_parent(0.0):
            return


def is_imported(state: ImportState, path: Path) -> bool:
    """Whether there is nothing in a log that an import would add.

    Of one that was followed, the last row and the judgement of its end may be missing.
    """
    if not state.is_of(log_signature(path)):
        return False
    return state.is_ended or not is_settled(path, time.time())


def cached_import(
    path: Path,
    settings: Settings,
    *,
    run: str = "",
    on_commit: Callable[[int], None] = lambda _: None,
) -> Path:
    """The database of a log, which is imported now unless it is unchanged since the last time.

    Waits for the import, which runs in this process; `on_commit` is that of `LogImport.read`.
    Raises OSError and ValueError if the log cannot be read.
    """
    cache = LogCache()
    entry = cache.entry(path, run, settings)
    entry.prepare()
    while True:
        state = entry.read()
        if is_imported(state, path):
            break
        with entry.lock() as is_free:
            if is_free:
                LogImporter(entry, path, run, settings, on_commit=on_commit).run()
                state = entry.read()
                break
        if state.is_complete and entry.is_importing():
            # It is followed, so the database is as new as it can be.
            break
        time.sleep(WAIT_SECONDS)
    cache.prune()
    found = entry.database(state)
    if state.problem or found is None:
        raise ValueError(state.problem or "it could not be imported")
    return found


class LogImporter:
    """Imports one log into its entry, whose lock is held."""

    def __init__(  # noqa: PLR0913 - with callbacks
        self,
        entry: CacheEntry,
        path: Path,
        run: str,
        settings: Settings,
        *,
        on_commit: Callable[[int], None] = lambda _: None,
        on_write: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_commit, self._on_write = on_commit, on_write
        self._entry, self._path, self._run, self._settings = entry, path, run, settings
        before = entry.read()
        is_usable = before.is_complete and entry.database(before) is not None
        entry.remove_databases(before.database if is_usable else "")
        # What is complete is shown until there is something newer that is complete.
        self._is_shown = not is_usable or bool(before.problem)
        self._state = ImportState(new_database_name(), log_signature(path))
        self._began_at = self._written_at = self._examined_at = time.monotonic()
        self._read_signature = self._state.signature

    def run(self, wait: Callable[[float], bool] | None = None) -> None:
        """Read the log. With `wait`, follow it then as `LogImport.follow` does."""
        database = self._entry.directory / self._state.database
        try:
            connect(database).close()
            self._write()
            with LogImport(self._path, self._settings, database, self._run) as importing:
                is_ended = is_settled(self._path, time.time())
                if wait is not None and not is_ended:
                    is_ended = importing.follow(wait, self._note_poll)
                else:
                    result = importing.read(self._note_progress, is_ended=is_ended)
                    self._note_progress(result.records)
                    if not is_ended:
                        self._judge_end(importing)
            if wait is None or is_ended:
                # Its page need not read it again.
                shown = self._entry.directory / self._state.database
                RunReader(shown, stores_series=True).series(())
                self._complete(is_ended=is_ended)
        except (OSError, ValueError) as error:
            self._fail(read_error_text(error))
        except Exception as error:
            self._fail(f"importing it fails with {type(error).__name__}: {error}")

    def _judge_end(self, importing: LogImport) -> None:
        """Judge the end of a log that may grow, for when it is settled, and keep a copy without."""
        ended = self._state.database
        database = open_database_name(ended)
        importing.copy_to(self._entry.directory / database)
        importing.end()
        self._state = replace(
            self._state,
            database=database,
            ended_database=ended,
            settles_at=last_written(self._path) + SETTLED_SECONDS,
        )

    def _note_progress(self, records: int) -> None:
        self._on_commit(records)
        self._state = replace(self._state, records=records)
        if time.monotonic() - self._written_at >= STATE_SECONDS:
            self._write()

    def _note_poll(self, records: int, is_caught_up: bool) -> None:
        """Note before a poll what was read up to the last one."""
        if not is_caught_up:
            self._note_progress(records)
            return
        if not self._state.is_complete:
            self._state = replace(self._state, records=records)
            self._complete(is_ended=False)
        now = time.monotonic()
        if now - self._examined_at >= SIGNATURE_SECONDS:
            self._examined_at = now
            if self._read_signature != self._state.signature:
                self._state = replace(self._state, signature=self._read_signature, records=records)
                self._write()
            # Of the files as they are before a poll, all is read after it.
            self._read_signature = log_signature(self._path)
        if records != self._state.records:
            # A last row that was held back makes no change of the files.
            self._note_progress(records)

    def _complete(self, *, is_ended: bool) -> None:
        seconds = self._state.seconds or time.monotonic() - self._began_at
        self._state = replace(self._state, is_complete=True, is_ended=is_ended, seconds=seconds)
        self._is_shown = True
        self._write()

    def _fail(self, problem: str) -> None:
        self._state = replace(self._state, problem=problem)
        self._complete(is_ended=True)

    def _write(self) -> None:
        self._written_at = time.monotonic()
        if self._is_shown:
            self._entry.write(self._state)
            self._on_write()


def _importer(entry: CacheEntry, path: Path, job: ImportJob, settings: Settings) -> LogImporter:
    return LogImporter(entry, path, job.run, settings, on_write=_notify_parent)


def _notify_parent() -> None:
    with suppress(OSError):  # the parent is gone
        os.write(sys.stdout.fileno(), b"\n")


def _wait_for_parent(seconds: float) -> bool:
    """Wait; whether the process that started this one still has the pipe to it open."""
    readable, _, _ = select.select([sys.stdin], [], [], seconds)
    return not readable
