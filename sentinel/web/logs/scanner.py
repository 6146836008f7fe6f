"""Searches a folder for logs."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic

from sentinel.config.settings import Settings
from sentinel.readers.log_folder import LogRun, find_logs
from sentinel.store.imports.log_cache import LogCache
from sentinel.store.notes import log_note_path
from sentinel.web.logs.shown_log import Changes, ShownLog, newest_first

SCAN_SECONDS = 2.0
"""Interval at which the folder is searched while the list is looked at."""
SCAN_SHARE = 0.1
"""Most of the time that is spent with searching a large folder."""
MAX_BACKGROUND_LOGS = 500
"""The newest logs, which are imported without a viewer."""


class LogScanner:
    """The logs at or below `folder`, by the name of their run.

    One thread calls `scan`. `problem` is why the folder cannot be read, empty if it can.
    """

    def __init__(self, folder: Path, settings: Settings, cache: LogCache, changes: Changes) -> None:
        self.folder, self._settings, self._cache = folder, settings, cache
        self._changes = changes
        self._logs: dict[str, ShownLog] = {}
        self.problem = ""
        self.interval = SCAN_SECONDS
        """Least seconds between two searches: a large folder is searched seldom."""

    @property
    def logs(self) -> list[ShownLog]:
        """The logs that the last search found."""
        with self._changes.lock:
            return [*self._logs.values()]

    def find(self, run: str) -> ShownLog | None:
        """The log of a run; None if there is none of that name."""
        with self._changes.lock:
            return self._logs.get(run)

    def scan(self) -> None:
        """Search the folder again."""
        began_at, problem = monotonic(), ""
        known = {shown.log.run: shown for shown in self.logs}
        try:
            found = find_logs(self.folder, [shown.log for shown in known.values()])
        except FileNotFoundError:
            found, problem = [], f"There is nothing at {self.folder} yet."
        except OSError as error:
            found, problem = [], f"{self.folder} cannot be read: {error.strerror}."
        logs = {each.run: self._shown(each, known.get(each.run)) for each in found}
        times, marks = {each.run: each.last_written for each in found}, _note_marks()
        with self._changes.lock:
            for each in found:
                shown = logs[each.run]
                shown.log, shown.last_written = each, times[each.run]
                shown.note_mark = marks.get(log_note_path(each.path).name, 0)
            for position, shown in enumerate(newest_first(logs.values())):
                shown.is_queued = position < MAX_BACKGROUND_LOGS
            self._logs, self.problem = logs, problem
            self.interval = max(SCAN_SECONDS, (monotonic() - began_at) / SCAN_SHARE)

    def _shown(self, found: LogRun, known: ShownLog | None) -> ShownLog:
        if known is not None and known.log.path == found.path:
            return known
        return ShownLog(found, self._cache.entry(found.path, found.run, self._settings))


def _note_marks() -> dict[str, int]:
    """When the note about each log was written, by the name of its file."""
    try:
        with os.scandir(log_note_path(Path()).parent) as files:
            return {each.name: each.stat().st_mtime_ns for each in files}
    except OSError:
        return {}
