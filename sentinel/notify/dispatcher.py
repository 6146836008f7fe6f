"""Courier: carries pages from the outbox to people, one lane per sink, across restarts."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from sentinel.model.counters import Counters
from sentinel.model.request import Sink
from sentinel.notify import outbox
from sentinel.notify.sink_worker import (
    DELIVERIES_METRIC,
    DELIVERY_OUTCOMES,
    DeliveryTiming,
    SinkWorker,
)
from sentinel.pipeline.engine import Result
from sentinel.store.database import connect

log = logging.getLogger(__name__)

_RESTART_DELAY_SECONDS = 1.0
_DRAIN_POLL_SECONDS = 0.02


class Dispatcher:
    """Delivers what `outbox.enqueue` committed to the database at `database_path`.

    Every page is tried until its receiver takes it, refuses it for good, or it is too old. It may
    arrive twice only where the receiver took it without answering, or where the agent was killed
    between the answer and the commit. `clock` tells seconds since the epoch.
    """

    def __init__(
        self,
        database_path: Path,
        sinks: Mapping[str, Sink],
        counters: Counters,
        clock: Callable[[], float] = time.time,
        timing: DeliveryTiming | None = None,
    ) -> None:
        self.database_path = database_path
        self.sinks = dict(sinks)
        self._counters, self._clock = counters, clock
        self._timing = timing or DeliveryTiming()
        self._wake_events = {name: threading.Event() for name in self.sinks}
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        for name in self.sinks:
            # A counter that is there from the start lets Prometheus see its first increase.
            for outcome in DELIVERY_OUTCOMES:
                counters.add(DELIVERIES_METRIC, f"{name}:{outcome}", 0.0)

    def start(self) -> None:
        """Begin delivering, first of all what an agent that was killed left behind.

        Raises sqlite3.Error if the database cannot be opened.
        """
        with closing(connect(self.database_path)) as connection:
            outbox.requeue_interrupted(connection)
        self._threads = [
            threading.Thread(
                target=self._run_thread, args=(name,), name=f"courier-{name}", daemon=True
            )
            for name in self.sinks
        ]
        for thread in self._threads:
            thread.start()

    def update(self, result: Result) -> None:
        """Wake the lanes if there is a page. Never blocks; the page itself is in the outbox."""
        if result.case_notifications:
            self.wake()

    def wake(self) -> None:
        """Look into the outbox now rather than within a second."""
        for bell in self._wake_events.values():
            bell.set()

    def drain(self, timeout: float) -> int:
        """Wait until everything is delivered or given up, `seconds` at most; how much is not."""
        limit = time.monotonic() + timeout
        self.wake()
        with closing(connect(self.database_path)) as connection:
            while (left := outbox.count_undelivered(connection, self.sinks)) and (
                time.monotonic() < limit
            ):
                time.sleep(_DRAIN_POLL_SECONDS)
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

    def _run_thread(self, name: str) -> None:
        lane: SinkWorker | None = None
        while not self._stopping.is_set():
            try:
                with closing(connect(self.database_path)) as connection:
                    # One lane for good: it remembers an outcome that could not be stored.
                    lane = lane or self._new_worker(name, connection)
                    lane.connection = connection
                    self._deliver_until_stopped(lane)
            except Exception as error:
                # Only the class is told: a message might quote what is secret.
                log.error("Courier to %s starts over: %s", name, type(error).__name__)  # noqa: TRY400
                self._stopping.wait(_RESTART_DELAY_SECONDS)

    def _new_worker(self, name: str, connection: sqlite3.Connection) -> SinkWorker:
        return SinkWorker(
            name, self.sinks[name], connection, self._counters, self._clock, self._timing
        )

    def _deliver_until_stopped(self, worker: SinkWorker) -> None:
        bell = self._wake_events[worker.name]
        while True:
            bell.clear()
            if self._stopping.is_set():
                return
            bell.wait(min(worker.deliver_next(), self._timing.max_sleep_seconds))
