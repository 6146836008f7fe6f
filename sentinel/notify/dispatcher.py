"""Runs one worker thread per sink that delivers notifications from the outbox."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from sentinel.config.route import Route
from sentinel.model.counters import Counters
from sentinel.model.delivery import Sink, sink_address
from sentinel.model.notification import Notification
from sentinel.notify import outbox
from sentinel.notify.recipients import Recipients
from sentinel.notify.sink_worker import (
    DELIVERIES_METRIC,
    DELIVERY_OUTCOMES,
    DeliveryTiming,
    SinkWorker,
)
from sentinel.notify.transports.send import load_transports
from sentinel.pipeline.engine import Result
from sentinel.store.database import connect

log = logging.getLogger(__name__)

_RESTART_DELAY_SECONDS = 1.0
_DRAIN_POLL_SECONDS = 0.02


class Dispatcher:
    """Delivers what `outbox.enqueue` committed to the database at `database_path`.

    Every notification is tried until its receiver accepts it, rejects it for good, or it is too
    old. It arrives twice only if the receiver accepts it without a response, or if the agent is
    killed between the response and the commit. `clock` returns seconds since the epoch. `is_wanted`
    and `recipients` are as those of SinkWorker; without recipients, every sink gets everything.
    `on_database_error` gets the errors of the database, and `on_resolved` the ends of cases that a
    receiver accepted, in the thread of a worker; `on_accepted` is that of SinkWorker. `predecessor`
    is the dispatcher of the agent that this one replaces, which is stopped.
    """

    def __init__(  # noqa: PLR0913 - what all workers share
        self,
        database_path: Path,
        sinks: Mapping[str, Sink],
        counters: Counters,
        clock: Callable[[], float] = time.time,
        timing: DeliveryTiming | None = None,
        *,
        is_wanted: Callable[[Notification], bool] = lambda _: True,
        recipients: Recipients | None = None,
        on_database_error: Callable[[Exception], None] = lambda _: None,
        on_resolved: Callable[[str, Notification, str | None], None] = lambda *_: None,
        on_accepted: Callable[[str, str, str, str], None] = lambda *_: None,
        predecessor: Dispatcher | None = None,
    ) -> None:
        if sinks:
            load_transports()
        self.database_path = database_path
        self.sinks = dict(sinks)
        self._counters, self._clock, self._is_wanted = counters, clock, is_wanted
        # Only the clock of the machine is set, and no other that a caller gives.
        self._monotonic = time.monotonic if clock is time.time else None
        self._timing = timing or DeliveryTiming()
        self._on_database_error, self._on_resolved = on_database_error, on_resolved
        self._on_accepted = on_accepted
        self._recipients = recipients or Recipients({name: Route() for name in self.sinks})
        self._wake_events = {name: threading.Event() for name in self.sinks}
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        # They may hold outcomes that are not stored; so may those of an agent before it, if that
        # one failed before it stored them.
        self.workers: dict[str, SinkWorker] = {} if predecessor is None else {**predecessor.workers}
        for name in self.sinks:
            # A counter that starts at 0 lets Prometheus see its first increase.
            for outcome in DELIVERY_OUTCOMES:
                counters.add(DELIVERIES_METRIC, f"{name}:{outcome}", 0.0)

    def start(self) -> None:
        """Start the workers; rows that an earlier agent left as `sending` are sent again.

        What the predecessor delivered and could not store is stored first. Raises sqlite3.Error if
        the database cannot be opened.
        """
        with closing(connect(self.database_path)) as connection:
            for worker in self.workers.values():
                worker.connection = connection
                worker.store_pending_outcome()
            addresses = {name: sink_address(sink) for name, sink in self.sinks.items()}
            outbox.store_addresses(connection, addresses)
            outbox.requeue_interrupted(connection, self._clock(), self._recipients.hold_seconds)
        self._threads = [
            threading.Thread(
                target=self._run_thread, args=(name,), name=f"sink-{name}", daemon=True
            )
            for name in self.sinks
        ]
        for thread in self._threads:
            thread.start()

    def update(self, result: Result) -> None:
        """Wake the workers if the result has a notification. Never blocks."""
        if result.case_notifications:
            self.wake()

    def wake(self) -> None:
        """Make the workers poll the outbox now instead of within a second."""
        for event in self._wake_events.values():
            event.set()

    def drain(self, timeout: float, stopping: threading.Event | None = None) -> int:
        """Wait up to `timeout` seconds for an empty outbox; return what is undelivered.

        It waits no longer once `stopping` is set.
        """
        deadline = time.monotonic() + timeout
        stopping = stopping or self._stopping
        self.wake()
        with closing(connect(self.database_path)) as connection:
            while (undelivered := outbox.count_undelivered(connection, self.sinks)) and (
                time.monotonic() < deadline
            ):
                if stopping.wait(_DRAIN_POLL_SECONDS):
                    break
        return undelivered

    def stop(self, timeout: float) -> bool:
        """Stop the workers; return whether all ended within `timeout` seconds.

        Undelivered notifications stay in the outbox for the next start.
        """
        deadline = time.monotonic() + timeout
        self._stopping.set()
        self.wake()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run_thread(self, name: str) -> None:
        worker: SinkWorker | None = None
        while not self._stopping.is_set():
            try:
                with closing(connect(self.database_path)) as connection:
                    # The worker survives an error: it holds an outcome that was not stored yet.
                    worker = self.workers[name] = worker or self._new_worker(name, connection)
                    worker.connection = connection
                    self._deliver_until_stopped(worker)
            except Exception as error:
                if not self._stopping.is_set():
                    # The next agent may use another file by now.
                    self._on_database_error(error)
                # Only the class is logged: a message can contain a secret.
                log.error("Worker of sink %s restarts: %s", name, type(error).__name__)  # noqa: TRY400
                self._stopping.wait(_RESTART_DELAY_SECONDS)

    def _new_worker(self, name: str, connection: sqlite3.Connection) -> SinkWorker:
        return SinkWorker(
            name,
            self.sinks[name],
            connection,
            self._counters,
            self._clock,
            self._timing,
            self._recipients,
            self.wake,
            self._is_wanted,
            self._on_resolved,
            self._on_accepted,
            self._monotonic,
        )

    def _deliver_until_stopped(self, worker: SinkWorker) -> None:
        wake_event = self._wake_events[worker.name]
        while True:
            wake_event.clear()
            if self._stopping.is_set():
                return
            wake_event.wait(min(worker.deliver_next(), self._timing.max_sleep_seconds))
