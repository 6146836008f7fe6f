"""The processes that import logs: for views, which they follow, and one in the background."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from time import monotonic

from sentinel.store.imports.log_cache import LogCache, log_signature
from sentinel.store.imports.log_worker import ImportJob, start_worker
from sentinel.web.logs.shown_log import Changes, ShownLog, newest_first

log = logging.getLogger(__name__)

FIRST_DATA_SECONDS = 5.0
"""Longest wait for the first rows of a log that is viewed."""
CHECK_SECONDS = 2.0
"""Interval at which the files of a viewed log are examined for changes."""
UNWATCHED_SECONDS = 600.0
"""A log without a viewer for so long is not followed any more."""
MAX_WORKERS = 4
"""Processes that import and follow logs, of which one works in the background."""
LOGS_PER_WORKER = 20
"""Logs that a process imports in the background one after the other: its start takes a second."""
MIN_REIMPORT_SECONDS = 60.0
REIMPORT_SHARE = 20.0
"""Least time between two imports of a log in the background, in seconds and in durations of one."""
_BACKGROUND = ""
"""Key of the process that works in the background."""
_FOREIGN_SECONDS = 0.5
"""Interval at which the state of an import is read that another server may be making."""
_CLOSE_SECONDS = 5.0


class LogImports:
    """Imports logs below a folder into the cache; for any number of threads.

    `clock` returns seconds since the epoch. `changes` counts what the processes write.
    """

    def __init__(self, cache: LogCache, changes: Changes, clock: Callable[[], float]) -> None:
        self._cache, self._changes, self._clock = cache, changes, clock
        self._workers: dict[str, _Worker] = {}

    @property
    def current_logs(self) -> list[ShownLog]:
        """The logs that a process imports or follows."""
        with self._changes.lock:
            return [shown for worker in self._workers.values() for shown in worker.logs]

    def close(self) -> None:
        """End the processes."""
        with self._changes.lock:
            workers = [*self._workers.values()]
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.kill_after(_CLOSE_SECONDS)

    def check(self, shown: ShownLog) -> None:
        """Import the log of a view and follow it, unless that is done or under way."""
        now = monotonic()
        with self._changes.lock:
            shown.viewed_at = now
            if shown.log.problem or now - shown.examined_at < CHECK_SECONDS:
                return
            shown.examined_at = now
        last_written = shown.log.last_written
        with self._changes.lock:
            shown.last_written = last_written
        if self._is_fresh(shown):
            return
        run = shown.log.run
        with self._changes.lock:
            viewed = {key: each for key, each in self._workers.items() if key != _BACKGROUND}
            if run in viewed or len(viewed) >= 2 * MAX_WORKERS:
                return
            if len(viewed) >= MAX_WORKERS - 1:
                # The number of processes is limited: that of the oldest view ends.
                min(viewed.values(), key=lambda each: each.viewed_at).stop()
            self._start(run, [shown])

    def wait_for_database(self, shown: ShownLog) -> Path:
        """The database of a log, empty if it cannot be read. Raises OSError, sqlite3.Error.

        Waits for its first rows.
        """
        shown.cache.prepare()
        deadline = monotonic() + FIRST_DATA_SECONDS
        while not (shown.log.problem or shown.failed or self._changes.is_stopped):
            known, state = self._changes.count, shown.cache.read()
            found, left = shown.cache.database(state), deadline - monotonic()
            if state.problem:
                break
            if found is not None and (left <= 0 or state.records or state.is_complete):
                return found
            if left <= 0:
                break
            self._changes.wait(known, min(left, _FOREIGN_SECONDS))
        return shown.cache.empty_database()

    def import_next(self, logs: Iterable[ShownLog]) -> None:
        """Import the newest logs that are not imported yet, unless that is under way."""
        now = monotonic()
        with self._changes.lock:
            if _BACKGROUND in self._workers:
                return
            queued = [each for each in newest_first(logs) if each.is_queued]
        chosen: list[ShownLog] = []
        for shown in queued:
            # Importing again and again takes a small part of the time.
            waited = now - shown.background_at
            if shown.log.problem or waited < MIN_REIMPORT_SECONDS:
                continue
            if waited < REIMPORT_SHARE * shown.cache.read().seconds:
                continue
            with self._changes.lock:
                shown.background_at = now
            if not self._is_fresh(shown):
                chosen.append(shown)
                if len(chosen) == LOGS_PER_WORKER:
                    break
        if chosen:
            with self._changes.lock:
                self._start(_BACKGROUND, chosen)

    def stop_unwatched(self) -> None:
        """End the processes that follow logs without a viewer."""
        now = monotonic()
        with self._changes.lock:
            for key, worker in self._workers.items():
                if key != _BACKGROUND and now - worker.viewed_at > UNWATCHED_SECONDS:
                    worker.stop()

    def _is_fresh(self, shown: ShownLog) -> bool:
        """Whether what is imported is all of the log, or a process is at work.

        A log that was imported before it was settled is imported again only if it changed.
        """
        if shown.cache.is_importing():
            return True
        state, signature = shown.cache.read(), log_signature(shown.log.path)
        with self._changes.lock:
            shown.signature = signature
        if shown.failed == signature:
            return True
        if not state.is_of(signature):
            return False
        # The end of a log that was followed, and left before it was settled, is not judged yet.
        return state.is_ended or shown.is_growing(self._clock())

    def _start(self, key: str, logs: list[ShownLog]) -> None:
        """Start a process; the lock is held."""
        if self._changes.is_stopped:
            return
        jobs = [
            ImportJob(str(each.cache.directory), str(each.log.path.absolute()), each.log.run)
            for each in logs
        ]
        try:
            child = start_worker(jobs, is_followed=key != _BACKGROUND)
        except OSError as error:
            log.warning("The log %s cannot be imported: %s", logs[0].log.path, error)
            return
        worker = self._workers[key] = _Worker(child, logs)
        Thread(
            target=self._attend, args=(key, worker), name="sentinel-log-import", daemon=True
        ).start()

    def _attend(self, key: str, worker: _Worker) -> None:
        """Count what a process writes, in a thread, until it ends."""
        if worker.child.stdout is not None:
            with worker.child.stdout as lines:
                for _ in lines:
                    self._changes.note()
        failed = worker.find_failed() if worker.child.wait() else None
        worker.stop()
        with self._changes.lock:
            if self._workers.get(key) is worker:
                del self._workers[key]
            if failed is not None:
                failed[0].failed = failed[1]
            for shown in worker.logs:
                shown.ended_imports += 1
                shown.summary_of = None
        self._cache.prune()
        self._changes.note()


@dataclass(eq=False)
class _Worker:
    """A process that imports these logs."""

    child: subprocess.Popen[bytes]
    logs: list[ShownLog]

    @property
    def viewed_at(self) -> float:
        """When the log that it follows was viewed last."""
        return self.logs[0].viewed_at

    def stop(self) -> None:
        """Let the process end after the import of its current log."""
        if self.child.stdin is not None:
            self.child.stdin.close()

    def find_failed(self) -> tuple[ShownLog, str] | None:
        """The log with which the process broke off, and the signature of its files.

        It would do so again before that changes.
        """
        for shown in self.logs:
            signature = log_signature(shown.log.path)
            if not shown.cache.read().is_of(signature):
                return shown, signature
        return None

    def kill_after(self, seconds: float) -> None:
        """Wait for the process; an import takes longer, and is begun anew the next time."""
        try:
            self.child.wait(0.1 if self.child.poll() is None else seconds)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
