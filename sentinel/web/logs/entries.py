"""The entries of logs in the list: what an import found, or what is known without one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic

from sentinel.metrics.stored_state import log_state, stored_summary
from sentinel.model.json_safe import JsonObject, parse_object
from sentinel.readers.last_step import read_last_step
from sentinel.store.imports.log_cache import ImportState
from sentinel.store.notes import log_note_path, read_note
from sentinel.store.run_summary import (
    READING,
    SUMMARY_NAME,
    encode_summary,
    run_entry,
    short_note,
    write_summary,
)
from sentinel.web.logs.shown_log import Changes, ShownLog

log = logging.getLogger(__name__)


class LogEntries:
    """Renews the entries of the logs below `folder`; one thread calls it."""

    def __init__(self, folder: Path, changes: Changes, clock: Callable[[], float]) -> None:
        self._folder, self._changes, self._clock = folder, changes, clock

    def update(self, logs: Iterable[ShownLog], until: float) -> None:
        """Renew the entries that show an older import.

        After the time `until`, logs without an entry get one of what is known without reading.
        """
        for shown in logs:
            is_late = monotonic() > until
            entry, ended_imports = shown.entry, shown.ended_imports
            if is_late and entry is not None:
                continue
            state = shown.cache.read()
            of = (state, shown.failed, shown.last_written, shown.log.problem, shown.note_mark)
            if entry is None or shown.summary_of != of:
                body = self._summary(shown, state, is_quick=is_late)
                stamp = int(shown.last_written * 1e9), len(body)
                entry = run_entry(shown.log.run, shown.cache.directory, stamp, body)
            with self._changes.lock:
                entry.is_live = shown.is_growing(self._clock())
                is_current = not is_late and shown.ended_imports == ended_imports
                shown.entry, shown.summary_of = entry, of if is_current else None

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
        is_growing = not state.is_ended and shown.is_growing(self._clock())
        known["state"] = log_state(known, is_growing=is_growing)["state"]
        parent = shown.log.path.parent
        if parent != self._folder and parent.is_relative_to(self._folder):
            known["project"] = known.get("project") or str(parent.relative_to(self._folder))
        note = read_note(log_note_path(shown.log.path)) if shown.note_mark else None
        return encode_summary(
            known
            | {
                "is_log": True,
                "last_written": shown.last_written,
                "tags": [shown.log.format or "not read"],
                "note": short_note(note),
            }
        )


def _read_summary(shown: ShownLog, state: ImportState, database: Path) -> JsonObject:
    """The summary of a complete import, made at most once. Raises OSError, sqlite3.Error."""
    stamp = [state.database, state.records, state.is_ended]
    path = shown.cache.directory / SUMMARY_NAME
    if path.is_file():
        stored = parse_object(path.read_text(errors="replace"))
        if stored.get("import") == stamp:
            return stored
    summary = stored_summary(shown.log.run, database, is_log=True)
    write_summary(shown.cache.directory, summary | {"import": stamp})
    return summary
