"""The view of one log, which goes on with the next import of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock

from sentinel.metrics.stored_state import log_state, stored_state
from sentinel.model.json_safe import JsonObject
from sentinel.store.imports.log_cache import ImportState
from sentinel.store.notes import log_note_path
from sentinel.store.run_reader import RunReader
from sentinel.web.logs.imports import LogImports
from sentinel.web.logs.shown_log import ShownLog
from sentinel.web.run_routes import RunView


class LogView:
    """What a page shows of a log; `database` is its import now.

    `clock` returns seconds since the epoch.
    """

    def __init__(
        self, shown: ShownLog, imports: LogImports, database: Path, clock: Callable[[], float]
    ) -> None:
        self._shown, self._imports, self._clock = shown, imports, clock
        self._lock = Lock()
        self._stored: tuple[object, JsonObject] = (None, {})
        """The state of an import, and the mark of its database then."""
        self.view = RunView(
            shown.log.run,
            _CurrentReader(database, self._use_newest),
            self.read_state,
            database,
            note_path=log_note_path(shown.log.path),
        )

    def read_state(self) -> JsonObject:
        """What `/api/run` answers. Raises sqlite3.Error."""
        shown = self._shown
        self._imports.check(shown)
        state = self._use_newest()
        mark = (self.view.database, self.view.change_mark())
        known, stored = self._stored
        if mark != known:
            stored = stored_state(self.view.database, shown.log.run, is_log=True)
            with self._lock:
                self._stored = mark, stored
        is_importing = shown.cache.is_importing()
        problem = shown.log.problem or state.problem
        is_growing = not state.is_ended and shown.is_growing(self._clock())
        found = log_state(stored, is_growing=is_growing) | {
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

    def _use_newest(self) -> ImportState:
        """Read the newest import from now on, and return its state."""
        state = self._shown.cache.read()
        database = self._shown.cache.database(state)
        if database is None or state.problem:
            return state
        with self._lock:
            is_new = database != self.view.database
            if is_new:
                self.view.database = self.view.reader.path = database
        if is_new and self.view.events is not None:
            self.view.events.reset_viewers()
        return state


class _CurrentReader(RunReader):
    """Reads what `use_newest` finds at the time of each call."""

    def __init__(self, database: Path, use_newest: Callable[[], object]) -> None:
        super().__init__(database, stores_series=True)
        self._use_newest = use_newest

    def _connect(self) -> sqlite3.Connection:
        self._use_newest()
        return super()._connect()


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
