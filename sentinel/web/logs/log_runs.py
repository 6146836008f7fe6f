"""The logs below a folder as runs, for `sentinel serve LOGDIR`.

The list shows at once what is known without reading a log. A log is imported when it is viewed, or
in the background, one at a time, the newest first; one that grows is followed while it is viewed.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from math import inf
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from time import monotonic

from sentinel.config.settings import Settings
from sentinel.model.json_safe import JsonObject
from sentinel.store.imports.log_cache import LogCache
from sentinel.store.run_summary import RunEntry
from sentinel.web.home.listed_settings import ListedSettings, describe_settings
from sentinel.web.home.run_list import ListAge, RunQuery, filter_runs, query_runs
from sentinel.web.logs.entries import LogEntries
from sentinel.web.logs.imports import LogImports
from sentinel.web.logs.scanner import LogScanner
from sentinel.web.logs.shown_log import Changes
from sentinel.web.logs.view import LogView
from sentinel.web.run_routes import RunView

log = logging.getLogger(__name__)

MAX_VIEWS = 8
"""Logs whose reader stays in memory: those that were viewed last, and all that are viewed."""
OUTDATED_SECONDS = 5.0
"""Age of a list that no page asked for meanwhile: the folder is searched before it is shown."""
MAX_LIST_WAIT_SECONDS = 1.0
"""Longest wait for that; a folder that takes longer is shown as it was."""
FIRST_LIST_SECONDS = 1.0
"""Time in which entries of the list are read in full before it is shown."""
_UPDATE_SECONDS = 0.5
_PAUSE_SECONDS = 0.2
_IDLE_SECONDS = 2.0
"""Longest pause of the thread: logs that have changed are imported again without a request."""


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
        self._folder, self._clock, self._first_wait = folder, clock, first_wait
        cache = LogCache() if cache is None else cache
        self._changes, self._age = Changes(), ListAge()
        self._scanner = LogScanner(folder, settings, cache, self._changes)
        self._imports = LogImports(cache, self._changes, clock)
        self._entries = LogEntries(folder, self._changes, clock)
        self._listed_settings = ListedSettings(self._find_database)
        self._views: OrderedDict[str, LogView] = OrderedDict()
        self._wanted, self._scanned = Flag(), Flag()
        self._thread = Thread(target=self._run, name="sentinel-logs", daemon=True)

    def start(self) -> None:
        """Begin to search the folder."""
        self._wanted.set()
        self._thread.start()

    def close(self) -> None:
        """End the thread and the importing processes."""
        self._changes.stop()
        self._imports.close()

    def list_runs(self, query: RunQuery) -> JsonObject:
        """The page of the list, see `query_runs`; with `notice` on what is waited for."""
        self._ask_for_scan()
        with self._changes.lock:
            for shown in self._scanner.logs:
                if shown.entry is not None:
                    # A log that grows stops to do so while the folder does not answer, too.
                    shown.entry.is_live = shown.is_growing(self._clock())
        entries = self._listed()
        if query.has_settings:
            self._want_settings()
        return (
            query_runs(entries, query, self._clock(), self._listed_settings.of)
            | self._age.fields()
            | {
                "notice": self._scanner.problem or ("" if entries else empty_notice(self._folder)),
                "unread_settings": self._listed_settings.missing_count,
            }
        )

    def list_settings(self, words: str) -> JsonObject:
        """The settings of the logs that a filter selects, see `describe_settings`.

        `unread_settings` is the number of logs whose settings are not read yet.
        """
        self._ask_for_scan()
        self._want_settings()
        found = describe_settings(map(self._listed_settings.of, filter_runs(self._listed(), words)))
        return {"settings": found, "unread_settings": self._listed_settings.missing_count}

    def view(self, run: str) -> RunView | None:
        """The view of a log; None if there is none of that name. Waits for its first rows."""
        shown = self._scanner.find(run)
        if shown is None:
            # A folder that hangs delays no page of a log that is known.
            self._ask_for_scan()
            shown = self._scanner.find(run)
        else:
            self._want_scan()
        if shown is None:
            return None
        with self._changes.lock:
            shown.viewed_at = monotonic()
            found = self._views.get(run)
        if found is None:
            self._imports.check(shown)
            database = self._imports.wait_for_database(shown)
            found = LogView(shown, self._imports, database, self._clock)
        with self._changes.lock:
            view = self._views.setdefault(run, found)
            self._views.move_to_end(run)
            for name, each in [*self._views.items()][:-MAX_VIEWS]:
                if each.view.events is None or not each.view.events.has_viewers:
                    del self._views[name]
        return view.view

    def path(self, run: str) -> Path | None:
        """The log of a run; None if there is none of that name."""
        shown = self._scanner.find(run)
        return None if shown is None or shown.log.problem else shown.log.path

    def _want_settings(self) -> None:
        """Let the settings be read; the first time, wait a moment for them."""
        if self._listed_settings.want():
            self._changes.note()
            self._listed_settings.wait(MAX_LIST_WAIT_SECONDS)

    def _listed(self) -> list[RunEntry]:
        return [each.entry for each in self._scanner.logs if each.entry is not None]

    def _find_database(self, entry: RunEntry) -> Path | None:
        """The database of a log; None before it is imported."""
        shown = self._scanner.find(entry.run)
        return None if shown is None else shown.cache.database(shown.cache.read())

    def _want_scan(self) -> None:
        if not self._wanted.is_set():
            self._wanted.set()
            self._changes.note()

    def _ask_for_scan(self) -> None:
        """Let the folder be searched again; wait for that if the last time is long ago."""
        age = self._age.seconds
        is_outdated = age >= OUTDATED_SECONDS + self._scanner.interval
        self._age.ask()
        if is_outdated:
            self._scanned.clear()
        self._want_scan()
        if is_outdated:
            self._scanned.wait(self._first_wait if age == inf else MAX_LIST_WAIT_SECONDS)

    def _run(self) -> None:
        """Search, import and read, in a thread, as long as there is something to do."""
        while not self._changes.is_stopped:
            known, is_busy = self._changes.count, False
            try:
                if self._wanted.is_set() and self._age.seconds >= self._scanner.interval:
                    self._wanted.clear()
                    self._scan()
                is_busy = self._work()
            except Exception:
                log.exception("The logs below %s cannot be listed", self._folder)
            due_in = self._scanner.interval - self._age.seconds if self._wanted.is_set() else inf
            pause = _PAUSE_SECONDS if is_busy else min(_IDLE_SECONDS, max(due_in, 0.0))
            self._changes.wait(known, pause)

    def _scan(self) -> None:
        until = monotonic() + FIRST_LIST_SECONDS
        self._scanner.scan()
        self._entries.update(self._scanner.logs, until)
        self._age.note_read(self._scanner.interval)
        self._scanned.set()

    def _work(self) -> bool:
        """Import what is to be imported, and renew the list; whether there is more to do."""
        self._imports.stop_unwatched()
        self._imports.import_next(self._scanner.logs)
        until = monotonic() + _UPDATE_SECONDS
        incomplete = [each for each in self._scanner.logs if each.summary_of is None]
        self._entries.update([*self._imports.current_logs, *incomplete], until)
        self._listed_settings.refresh(self._listed())
        while monotonic() < until and self._listed_settings.read_one():
            pass
        is_unread = any(each.summary_of is None for each in self._scanner.logs)
        return is_unread or bool(self._listed_settings.missing_count)


def empty_notice(folder: Path) -> str:
    """What is waited for in a folder without a log, and what to check."""
    return (
        f"No log in {folder} yet. It appears here when the first file arrives: an event file of "
        "TensorBoard, a .wandb file, JSON lines, CSV or trainer_state.json. If the training runs "
        "already, check that it logs into this folder, and that its logging interval is not 0 "
        "(logging_steps, log_freq, log_every_n_steps)."
    )
