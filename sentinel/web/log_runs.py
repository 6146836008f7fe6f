"""The logs below a folder as runs, for `sentinel serve LOGDIR`.

The list shows at once what is known without reading a log. A log is imported when it is viewed, or
in the background, one at a time, the newest first; one that grows is followed while it is viewed.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from threading import Event as Flag
from threading import RLock, Thread
from time import monotonic
from typing import Any, cast

from sentinel.config.settings import Settings
from sentinel.metrics.stored_state import log_state, stored_state, stored_summary
from sentinel.model.json_safe import JsonObject, parse_object
from sentinel.readers.last_step import read_last_step
from sentinel.readers.log_folder import LogRun, find_logs
from sentinel.store.log_cache import CacheEntry, ImportState, LogCache, log_signature
from sentinel.store.log_import import SETTLED_SECONDS
from sentinel.store.log_worker import ImportJob, start_worker
from sentinel.store.notes import log_note_path, read_note
from sentinel.store.run_reader import RunReader
from sentinel.store.run_summary import (
    READING,
    SUMMARY_NAME,
    RunEntry,
    encode_summary,
    run_entry,
    short_note,
    write_summary,
)
from sentinel.web.listed_settings import ListedSettings, describe_settings
from sentinel.web.run_list import ListAge, RunQuery, filter_runs, query_runs
from sentinel.web.run_routes import RunView

log = logging.getLogger(__name__)

MAX_VIEWS = 8
"""Logs whose reader stays in memory: those that were viewed last, and all that are viewed."""
SCAN_SECONDS = 2.0
"""Interval at which the folder is searched while the list is looked at."""
OUTDATED_SECONDS = 5.0
"""Age of a list that no page asked for meanwhile: the folder is searched before it is shown."""
MAX_LIST_WAIT_SECONDS = 1.0
"""Longest wait for that; a folder that takes longer is shown as it was."""
SCAN_SHARE = 0.1
"""Most of the time that is spent with searching a large folder."""
FIRST_LIST_SECONDS = 1.0
"""Time in which entries of the list are read in full before it is shown."""
FIRST_DATA_SECONDS = 5.0
"""Longest wait for the first rows of a log that is viewed."""
CHECK_SECONDS = 2.0
"""Interval at which the files of a viewed log are examined for changes."""
UNWATCHED_SECONDS = 600.0
"""A log without a viewer for so long is not followed any more."""
MAX_WORKERS = 4
"""Processes that import and follow logs, of which one works in the background."""
MAX_BACKGROUND_LOGS = 500
"""The newest logs, which are imported without a viewer."""
LOGS_PER_WORKER = 20
"""Logs that a process imports in the background one after the other: its start takes a second."""
_BACKGROUND = ""
"""Key of the process that works in the background."""
MIN_REIMPORT_SECONDS = 60.0
REIMPORT_SHARE = 20.0
"""Least time between two imports of a log in the background, in seconds and in durations of one."""
_IDLE_SECONDS = 0.2
_UPDATE_SECONDS = 0.5
_CLOSE_SECONDS = 5.0


@dataclass(eq=False)
class ShownLog:
    """A log in the list. `summary_of` is the import that the entry shows."""

    log: LogRun
    cache: CacheEntry
    last_written: float = 0.0
    entry: RunEntry | None = None
    summary_of: object = None
    signature: str = ""
    examined_at: float = float("-inf")
    viewed_at: float = float("-inf")
    failed: str = ""
    """Signature of the files with which the importing process broke off."""
    background_at: float = float("-inf")
    is_queued: bool = False
    """Whether it is among the logs that are imported without a viewer."""
    note_mark: int = 0
    """When the note about it was written, in nanoseconds; 0 without one."""


class LogRuns:
    """The logs at or below `folder`; a source of runs for `HomeSite`.

    `settings` are those of a replay. `clock` returns seconds since the epoch.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        *,
        cache: LogCache | None = None,
        clock: Callable[[], float] = time.time,
        first_wait: float = 5.0,
    ) -> None:
        self._folder, self._settings, self._clock = folder, settings, clock
        self._cache = LogCache() if cache is None else cache
        self._logs: dict[str, ShownLog] = {}
        self._views: OrderedDict[str, _LogView] = OrderedDict()
        self._workers: dict[str, _Worker] = {}
        self._lock = RLock()
        self._wanted, self._stopped, self._scanned = Flag(), Flag(), Flag()
        self._age, self._scan_seconds = ListAge(), 0.0
        self._listed_settings = ListedSettings(self._find_database)
        self._first_wait, self._problem = first_wait, ""
        self._thread = Thread(target=self._run, name="sentinel-logs", daemon=True)

    def start(self) -> None:
        """Begin to search the folder."""
        self._wanted.set()
        self._thread.start()

    def close(self) -> None:
        """End the thread and the importing processes."""
        self._stopped.set()
        self._wanted.set()
        with self._lock:
            for worker in self._workers.values():
                worker.stop()
            for worker in self._workers.values():
                worker.kill_after(_CLOSE_SECONDS)

    def list_runs(self, query: RunQuery) -> JsonObject:
        """The page of the list, see `query_runs`; with `notice` on what is waited for."""
        self._ask_for_scan()
        with self._lock:
            for shown in self._logs.values():
                if shown.entry is not None:
                    # A log that grows stops to do so while the folder does not answer, too.
                    shown.entry.is_live = self.is_growing(shown)
        entries = self._entries()
        if query.has_settings:
            self._want_settings()
        return (
            query_runs(entries, query, self._clock(), self._listed_settings.of)
            | self._age.fields()
            | {
                "notice": self._problem or ("" if entries else empty_notice(self._folder)),
                "unread_settings": self._listed_settings.missing_count,
            }
        )

    def list_settings(self, words: str) -> JsonObject:
        """The settings of the logs that a filter selects, see `describe_settings`.

        `unread_settings` is the number of logs whose settings are not read yet.
        """
        self._ask_for_scan()
        self._want_settings()
        found = describe_settings(
            map(self._listed_settings.of, filter_runs(self._entries(), words))
        )
        return {"settings": found, "unread_settings": self._listed_settings.missing_count}

    def _want_settings(self) -> None:
        """Let the settings be read; the first time, wait a moment for them."""
        if self._listed_settings.want():
            self._listed_settings.wait(MAX_LIST_WAIT_SECONDS)

    def _entries(self) -> list[RunEntry]:
        with self._lock:
            return [each.entry for each in self._logs.values() if each.entry is not None]

    def _find_database(self, entry: RunEntry) -> Path | None:
        """The database of a log; None before it is imported."""
        shown = self._find(entry.run)
        return None if shown is None else shown.cache.database(shown.cache.read())

    def _ask_for_scan(self) -> None:
        """Let the folder be searched again; wait for that if the last time is long ago."""
        age = self._age.seconds
        # A large folder is searched seldom.
        is_outdated = age >= OUTDATED_SECONDS + self._scan_interval()
        self._age.ask()
        if is_outdated:
            self._scanned.clear()
        self._wanted.set()
        if is_outdated:
            self._scanned.wait(self._first_wait if age == inf else MAX_LIST_WAIT_SECONDS)

    def view(self, run: str) -> RunView | None:
        """The view of a log; None if there is none of that name. Waits for its first rows."""
        self._wanted.set()
        shown = self._find(run)
        if shown is None:
            # A folder that hangs delays no page of a log that is known.
            self._ask_for_scan()
            shown = self._find(run)
        if shown is None:
            return None
        shown.viewed_at = monotonic()
        with self._lock:
            found = self._views.get(run)
        if found is None:
            self.check(shown)
            found = _LogView(self, shown, self._wait_for_database(shown))
        with self._lock:
            view = self._views.setdefault(run, found)
            self._views.move_to_end(run)
            for name, each in [*self._views.items()][:-MAX_VIEWS]:
                if each.view.events is None or not each.view.events.has_viewers:
                    del self._views[name]
        return view.view

    def _find(self, run: str) -> ShownLog | None:
        with self._lock:
            return self._logs.get(run)

    def path(self, run: str) -> Path | None:
        """The log of a run; None if there is none of that name."""
        shown = self._find(run)
        return None if shown is None or shown.log.problem else shown.log.path

    def check(self, shown: ShownLog) -> None:
        """Import the log of a view, unless that is done or under way."""
        shown.viewed_at = now = monotonic()
        if shown.log.problem or now - shown.examined_at < CHECK_SECONDS:
            return
        shown.examined_at = now
        shown.last_written = shown.log.last_written
        if not self._is_fresh(shown):
            self._follow(shown)

    def is_growing(self, shown: ShownLog) -> bool:
        """Whether the log was written a short time ago."""
        return self._clock() - shown.last_written < SETTLED_SECONDS

    def _is_fresh(self, shown: ShownLog) -> bool:
        """Whether what is imported is all of the log, or a process is at work.

        A log that was imported before it was settled is imported again only if it changed.
        """
        if shown.cache.is_importing():
            return True
        state = shown.cache.read()
        shown.signature = log_signature(shown.log.path)
        if shown.failed == shown.signature:
            return True
        if not state.is_of(shown.signature):
            return False
        # The end of a log that was followed, and left before it was settled, is not judged yet.
        return state.is_ended or self.is_growing(shown)

    def _wait_for_database(self, shown: ShownLog) -> Path:
        """The database of the log, empty if it cannot be read. Raises OSError, sqlite3.Error."""
        shown.cache.prepare()
        deadline = monotonic() + FIRST_DATA_SECONDS
        while not (shown.log.problem or shown.failed or self._stopped.is_set()):
            state = shown.cache.read()
            if state.problem:
                break
            found = shown.cache.database(state)
            if found is not None and (state.records or state.is_complete):
                return found
            if monotonic() > deadline:
                if found is not None:
                    return found
                break
            time.sleep(0.02)
        return shown.cache.empty_database()

    def _follow(self, shown: ShownLog) -> None:
        """Import the log and follow it, unless a process does."""
        run = shown.log.run
        with self._lock:
            viewed = [name for name in self._workers if name != _BACKGROUND]
            if run in viewed or len(viewed) >= 2 * MAX_WORKERS:
                return
            if len(viewed) >= MAX_WORKERS - 1:
                # The one that was looked at longest ago makes room.
                self._workers[min(viewed, key=self._viewed_at)].stop()
            self._start_worker(run, [shown])

    def _start_worker(self, key: str, logs: list[ShownLog]) -> None:
        if self._stopped.is_set():
            return
        jobs = [
            ImportJob(str(each.cache.directory), str(each.log.path.absolute()), each.log.run)
            for each in logs
        ]
        try:
            child = start_worker(jobs, is_followed=key != _BACKGROUND)
        except OSError as error:
            log.warning("Logs below %s cannot be imported: %s", self._folder, error)
            return
        self._workers[key] = _Worker(child, logs)

    def _viewed_at(self, run: str) -> float:
        shown = self._logs.get(run)
        return float("-inf") if shown is None else shown.viewed_at

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                if self._wanted.is_set():
                    self._wanted.clear()
                    self._scan()
                self._reap_workers()
                self._import_next()
                until = monotonic() + _UPDATE_SECONDS
                self._update_entries(self._changing_logs(), until)
                self._listed_settings.refresh(self._entries())
                while monotonic() < until and self._listed_settings.read_one():
                    pass
            except Exception:
                log.exception("The logs below %s cannot be listed", self._folder)
            self._stopped.wait(_IDLE_SECONDS)

    def _scan(self) -> None:
        """Search the folder again, unless that was done a short time ago."""
        if self._age.seconds < self._scan_interval():
            self._wanted.set()
            return
        began_at = monotonic()
        problem = ""
        try:
            found = find_logs(self._folder, [shown.log for shown in self._logs.values()])
        except FileNotFoundError:
            found, problem = [], f"There is nothing at {self._folder} yet."
        except OSError as error:
            found, problem = [], f"{self._folder} cannot be read: {error.strerror}."
        logs = {each.run: self._shown(each) for each in found}
        for shown in logs.values():
            shown.last_written = shown.log.last_written
        marks = _note_marks()
        for position, shown in enumerate(_newest_first(logs.values())):
            shown.is_queued = position < MAX_BACKGROUND_LOGS
            shown.note_mark = marks.get(log_note_path(shown.log.path).name, 0)
        with self._lock:
            self._logs, self._problem = logs, problem
        self._scan_seconds = monotonic() - began_at
        self._update_entries([*logs.values()], began_at + FIRST_LIST_SECONDS)
        self._age.note_read(self._scan_interval())
        self._scanned.set()

    def _scan_interval(self) -> float:
        return max(SCAN_SECONDS, self._scan_seconds / SCAN_SHARE)

    def _shown(self, found: LogRun) -> ShownLog:
        known = self._logs.get(found.run)
        if known is not None and known.log.path == found.path:
            known.log = found
            return known
        return ShownLog(found, self._cache.entry(found.path, found.run, self._settings))

    def _reap_workers(self) -> None:
        now = monotonic()
        with self._lock:
            for key, worker in [*self._workers.items()]:
                if worker.child.poll() is None:
                    if key != _BACKGROUND and now - self._viewed_at(key) > UNWATCHED_SECONDS:
                        worker.stop()
                    continue
                del self._workers[key]
                worker.stop()
                if worker.child.returncode:
                    worker.mark_failed()
                for shown in worker.logs:
                    shown.summary_of = None
                self._cache.prune()

    def _import_next(self) -> None:
        """Import the newest logs that are not imported yet, if nothing else is under way."""
        now = monotonic()
        with self._lock:
            if _BACKGROUND in self._workers:
                return
            newest = [each for each in _newest_first(self._logs.values()) if each.is_queued]
        chosen: list[ShownLog] = []
        for shown in newest:
            # Importing again and again takes a small part of the time.
            waited = now - shown.background_at
            if shown.log.problem or waited < MIN_REIMPORT_SECONDS:
                continue
            if waited < REIMPORT_SHARE * shown.cache.read().seconds:
                continue
            shown.background_at = now
            if not self._is_fresh(shown):
                chosen.append(shown)
                if len(chosen) == LOGS_PER_WORKER:
                    break
        if chosen:
            with self._lock:
                self._start_worker(_BACKGROUND, chosen)

    def _changing_logs(self) -> list[ShownLog]:
        """The logs that a process imports, and those whose entry is not complete."""
        with self._lock:
            imported = [shown for worker in self._workers.values() for shown in worker.logs]
            return imported + [each for each in self._logs.values() if each.summary_of is None]

    def _update_entries(self, logs: list[ShownLog], until: float) -> None:
        """Renew the entries in the list that show an older import.

        After the time `until`, logs without an entry get one of what is known without reading.
        """
        for shown in logs:
            is_late = monotonic() > until
            if is_late and shown.entry is not None:
                continue
            state = shown.cache.read()
            of = (state, shown.failed, shown.last_written, shown.log.problem, shown.note_mark)
            if shown.entry is None or shown.summary_of != of:
                body = self._summary(shown, state, is_quick=is_late)
                stamp = int(shown.last_written * 1e9), len(body)
                shown.entry = run_entry(shown.log.run, shown.cache.directory, stamp, body)
                shown.summary_of = None if is_late else of
            shown.entry.is_live = self.is_growing(shown)

    def _summary(self, shown: ShownLog, state: ImportState, *, is_quick: bool) -> bytes:
        """The summary of a log as JSON; of one that is not imported, what is known without."""
        is_reading = shown.is_queued and not (state.is_complete or shown.failed)
        known: JsonObject = {
            "run": shown.log.run,
            "state": READING if is_reading else "unknown",
            "health": "unknown",
        }
        if not state.is_complete and not is_quick:
            known["step"] = read_last_step(shown.log.path, shown.log.format)
        database = shown.cache.database(state)
        if state.is_complete and not state.problem and database is not None and not is_quick:
            try:
                known = _read_summary(shown, state, database)
            except Exception as error:
                log.debug("The import of %s cannot be read: %s", shown.log.path, error)
        problem = shown.log.problem or state.problem
        if problem:
            known["state"] = "unknown"
            known["worst_case"] = {"subject": f"Not read: {problem}", "severity": "unknown"}
        is_growing = not state.is_ended and self.is_growing(shown)
        known["state"] = log_state(known, is_growing=is_growing)["state"]
        parent = shown.log.path.parent
        if parent != self._folder and parent.is_relative_to(self._folder):
            known["project"] = known.get("project") or str(parent.relative_to(self._folder))
        note = read_note(log_note_path(shown.log.path)) if shown.note_mark else None
        return encode_summary(
            known
            | {
                "last_written": shown.last_written,
                "tags": [shown.log.format or "not read"],
                "note": short_note(note),
            }
        )


def _note_marks() -> dict[str, int]:
    """When the note about each log was written, by the name of its file."""
    try:
        with os.scandir(log_note_path(Path()).parent) as files:
            return {each.name: each.stat().st_mtime_ns for each in files}
    except OSError:
        return {}


def _newest_first(logs: Iterable[ShownLog]) -> list[ShownLog]:
    return sorted(logs, key=lambda each: each.last_written, reverse=True)


@dataclass(eq=False)
class _Worker:
    """A process that imports these logs."""

    child: subprocess.Popen[bytes]
    logs: list[ShownLog]

    def stop(self) -> None:
        """Let the process end once it has imported the log in hand."""
        if self.child.stdin is not None:
            self.child.stdin.close()

    def mark_failed(self) -> None:
        """Note with which log the process broke off: it would do so again before that changes."""
        for shown in self.logs:
            signature = log_signature(shown.log.path)
            if not shown.cache.read().is_of(signature):
                shown.failed = signature
                return

    def kill_after(self, seconds: float) -> None:
        """Wait for the process; an import takes longer, and is begun anew the next time."""
        try:
            self.child.wait(0.1 if self.child.poll() is None else seconds)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


class _CurrentReader:
    """Reads with what `find` returns at the time of each call."""

    def __init__(self, find: Callable[[], RunReader]) -> None:
        self._find = find

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            return getattr(self._find(), name)(*arguments, **named)

        return call


class _LogView:
    """The view of one log, which goes on with the next import of it."""

    def __init__(self, runs: LogRuns, shown: ShownLog, database: Path) -> None:
        self._runs, self._shown = runs, shown
        self._reader = RunReader(database)
        self._mark: object = None
        self._stored: JsonObject = {}
        self.view = RunView(
            shown.log.run,
            cast("RunReader", _CurrentReader(self._find_reader)),
            self.read_state,
            database,
            note_path=log_note_path(shown.log.path),
        )

    def read_state(self) -> JsonObject:
        """What `/api/run` answers. Raises sqlite3.Error."""
        shown = self._shown
        self._runs.check(shown)
        state = self._change_database()
        mark = (self.view.database, self.view.change_mark())
        if mark != self._mark:
            self._stored = stored_state(self.view.database, shown.log.run)
            self._mark = mark
        is_importing = shown.cache.is_importing()
        problem = shown.log.problem or state.problem
        is_growing = not state.is_ended and self._runs.is_growing(shown)
        found = log_state(self._stored, is_growing=is_growing) | {
            # Who looks at it gets what is imported.
            "is_live": not problem and (is_importing or is_growing),
            "log": {
                "path": str(shown.log.path),
                "format": shown.log.format,
                "notices": [*_notices(shown, state, is_importing=is_importing)],
            },
        }
        if problem:
            found |= {"state": "unknown", "active": False}
        return found

    def _find_reader(self) -> RunReader:
        self._change_database()
        return self._reader

    def _change_database(self) -> ImportState:
        """Read the newest import from now on, and return its state."""
        state = self._shown.cache.read()
        database = self._shown.cache.database(state)
        if database is not None and not state.problem and database != self.view.database:
            self._reader, self.view.database = RunReader(database), database
            if self.view.events is not None:
                self.view.events.reset_viewers()
        return state


def _notices(shown: ShownLog, state: ImportState, *, is_importing: bool) -> Iterator[JsonObject]:
    """What a person has to know of the reading of the log."""
    problem = shown.log.problem or state.problem
    if problem:
        yield {"severity": "critical", "text": f"This log is not read: {problem}."}
    elif shown.failed:
        text = "The process that imports this log broke off; a change of the log starts it again."
        yield {"severity": "critical", "text": text}
    elif not state.is_complete:
        count = f"{state.records:,} records so far" if state.records else "it begins"
        yield {"severity": "info", "text": f"The log is being imported: {count}."}
    elif is_importing and shown.cache.has_newer_import(state) and not state.is_of(shown.signature):
        yield {"severity": "info", "text": "The log has changed and is read again."}


def _read_summary(shown: ShownLog, state: ImportState, database: Path) -> JsonObject:
    """The summary of a complete import, made at most once. Raises OSError, sqlite3.Error."""
    stamp = [state.database, state.records, state.is_ended]
    path = shown.cache.directory / SUMMARY_NAME
    if path.is_file():
        stored = parse_object(path.read_text(errors="replace"))
        if stored.get("import") == stamp:
            return stored
    summary = stored_summary(shown.log.run, database)
    write_summary(shown.cache.directory, summary | {"import": stamp})
    return summary


def empty_notice(folder: Path) -> str:
    """What is waited for in a folder without a log, and what to check."""
    return (
        f"No log in {folder} yet. It appears here when the first file arrives: an event file of "
        "TensorBoard, a .wandb file, JSON lines, CSV or trainer_state.json. If the training runs "
        "already, check that it logs into this folder, and that its logging interval is not 0 "
        "(logging_steps, log_freq, log_every_n_steps)."
    )
