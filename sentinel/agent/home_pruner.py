"""Deletes the oldest ended runs of the home directory while an agent runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from sentinel.store.stored_runs import prune_home

log = logging.getLogger(__name__)

PRUNE_INTERVAL_SECONDS = 3600.0


class HomePruner:
    """Deletes ended runs above `max_bytes`, once an hour and at the end of the run.

    It works in a thread: a file server may be slow, and a run may have many files.
    """

    def __init__(self, home: Path, max_bytes: float, clock: Callable[[], float]) -> None:
        self.home, self.max_bytes, self.clock = home, max_bytes, clock
        self._pruned_at = clock()
        self._has_pruned_at_end = False
        self._thread: Thread | None = None

    def poll(self, *, has_ended: bool) -> None:
        """Start the thread if it is time. Never waits."""
        is_first_at_end = has_ended and not self._has_pruned_at_end
        is_due = abs(self.clock() - self._pruned_at) >= PRUNE_INTERVAL_SECONDS
        if not (is_first_at_end or is_due) or (self._thread and self._thread.is_alive()):
            return
        self._pruned_at, self._has_pruned_at_end = self.clock(), has_ended
        self._thread = Thread(target=self._prune, name="home-pruner", daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for a deletion under way."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _prune(self) -> None:
        try:
            deleted = prune_home(self.home, self.max_bytes, self.clock())
        except Exception:
            log.exception("Runs that ended cannot be deleted")
            return
        for run in deleted:
            log.info("Deleted run %s, which ended: the home directory is full", run.run)
