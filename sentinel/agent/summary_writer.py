"""A thread that keeps the summary of the run in its directory up to date."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from time import monotonic
from typing import Any

from sentinel.store.run_reader import RunReader
from sentinel.store.run_summary import read_summary, write_summary

log = logging.getLogger(__name__)

FIRST_INTERVAL_SECONDS, INTERVAL_SECONDS = 0.5, 10.0
"""A run that starts changes much at first: the interval doubles."""
MAX_UNCHANGED_SECONDS = 60.0
"""An unchanged summary is written again after that: other nodes see that the agent lives."""
STOP_SECONDS = 2.0
"""How long an agent that ends waits for the last summary of the run."""


class SummaryWriter:
    """Writes the summary of the run that `state` and `reader` describe, at most every 10 seconds.

    In a thread, since the disk may hang.
    """

    def __init__(
        self, directory: Path, state: Callable[[], dict[str, Any]], reader: RunReader
    ) -> None:
        self._directory, self._state, self._reader = directory, state, reader
        self._stopping = Flag()
        self._written: dict[str, Any] = {}
        self._written_at = 0.0
        self._thread = Thread(target=self._run, name="sentinel-summary", daemon=True)

    def start(self) -> None:
        """Write the first summary, and further ones until `stop`."""
        self._thread.start()

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Write the last summary, and wait for that for at most `timeout` seconds."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        interval = FIRST_INTERVAL_SECONDS
        while True:
            is_last = self._stopping.is_set()
            try:
                self._write()
            except Exception as error:
                # A list of runs without it shows less; the storage reports its own failures.
                log.debug("The summary of the run cannot be written: %s", error)
            if is_last:
                return
            self._stopping.wait(interval)
            interval = min(2 * interval, INTERVAL_SECONDS)

    def _write(self) -> None:
        summary, now = read_summary(self._state(), self._reader), monotonic()
        if summary != self._written or now - self._written_at >= MAX_UNCHANGED_SECONDS:
            write_summary(self._directory, summary)
            self._written, self._written_at = summary, now
