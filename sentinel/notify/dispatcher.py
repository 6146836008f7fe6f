"""Courier: carries pages from the outbox to people, one lane per sink, across restarts."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from sentinel.model.counters import Tally
from sentinel.model.request import Sink
from sentinel.notify import outbox
from sentinel.notify.sink_worker import FAMILY, OUTCOMES, Lane, Pace
from sentinel.pipeline.engine import Verdict
from sentinel.store.database import connect

log = logging.getLogger(__name__)

_AFTER_TROUBLE = 1.0
_POLL = 0.02


class Courier:
    """Delivers what `outbox.enqueue` committed to the database at `database_path`.

    Every page is tried until its receiver takes it, refuses it for good, or it is too old. It may
    arrive twice only where the receiver took it without answering, or where the agent was killed
    between the answer and the commit. `clock` tells seconds since the epoch.
    """

    def __init__(
        self,
        database_path: Path,
        sinks: Mapping[str, Sink],
        tally: Tally,
        clock: Callable[[], float] = time.time,
        pace: Pace | None = None,
    ) -> None:
        self.database_path = database_path
        self.sinks = dict(sinks)
        self._tally, self._clock = tally, clock
        self._pace = pace or Pace()
        self._bells = {name: threading.Event() for name in self.sinks}
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        for name in self.sinks:
            # A counter that is there from the start lets Prometheus see its first increase.
            for outcome in OUTCOMES:
                tally.add(FAMILY, f"{name}:{outcome}", 0.0)

    def start(self) -> None:
        """Begin delivering, first of all what an agent that was killed left behind.

        Raises sqlite3.Error if the database cannot be opened.
        """
        with closing(connect(self.database_path)) as connection:
            outbox.requeue_unknown(connection)
        self._threads = [
            threading.Thread(target=self._work, args=(name,), name=f"courier-{name}", daemon=True)
            for name in self.sinks
        ]
        for thread in self._threads:
            thread.start()

    def take(self, verdict: Verdict) -> None:
        """Wake the lanes if there is a page. Never blocks; the page itself is in the outbox."""
        if verdict.told:
            self.wake()

    def wake(self) -> None:
        """Look into the outbox now rather than within a second."""
        for bell in self._bells.values():
            bell.set()

    def drain(self, seconds: float) -> int:
        """Wait until everything is delivered or given up, `seconds` at most; how much is not."""
        limit = time.monotonic() + seconds
        self.wake()
        with closing(connect(self.database_path)) as connection:
            while (left := outbox.undelivered(connection, self.sinks)) and (
                time.monotonic() < limit
            ):
                time.sleep(_POLL)
        return left

    def stop(self, timeout: float) -> bool:
        """End the lanes, waiting up to `timeout` seconds for requests under way; whether all did.

        What is not delivered stays in the outbox for the next start.
        """
        limit = time.monotonic() + timeout
        self._stopping.set()
        self.wake()
        for thread in self._threads:
            thread.join(max(0.0, limit - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self, name: str) -> None:
        lane: Lane | None = None
        while not self._stopping.is_set():
            try:
                with closing(connect(self.database_path)) as connection:
                    # One lane for good: it remembers an outcome that could not be stored.
                    lane = lane or self._lane(name, connection)
                    lane.connection = connection
                    self._run(lane)
            except Exception as error:
                # Only the class is told: a message might quote what is secret.
                log.error("Courier to %s starts over: %s", name, type(error).__name__)  # noqa: TRY400
                self._stopping.wait(_AFTER_TROUBLE)

    def _lane(self, name: str, connection: sqlite3.Connection) -> Lane:
        return Lane(name, self.sinks[name], connection, self._tally, self._clock, self._pace)

    def _run(self, lane: Lane) -> None:
        bell = self._bells[lane.name]
        while True:
            bell.clear()
            if self._stopping.is_set():
                return
            bell.wait(min(lane.turn(), self._pace.idle))
