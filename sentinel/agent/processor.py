"""Judge: all that becomes of a record once it was read: verdicts, what is shown, and who is told.

Whatever a record leads to is stored in the transaction of its caller. A judge that takes over from
one that was killed restores the last snapshot and feeds itself the journal behind it.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from sentinel.actions.planner import ActionPlanner
from sentinel.config.settings import Settings, build_causes, build_detectors
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Counters
from sentinel.model.incident import RunTier
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import RecordBatch, RecordOrBatch
from sentinel.model.request import Sink
from sentinel.notify.policy import NotificationPolicy
from sentinel.pipeline.engine import Result
from sentinel.pipeline.onset import estimate_incident_onset
from sentinel.pipeline.pipeline import SKIPPED_ERRORS, Pipeline
from sentinel.signals.catalogue import canonical_name
from sentinel.signals.hardware import NODE_SIGNALS, NodeMeasurements
from sentinel.store import database
from sentinel.store.history import History
from sentinel.store.journal import Journal
from sentinel.store.onset_worker import OnsetWorker
from sentinel.store.samples import SampleStore
from sentinel.transport.ring import RingReader

log = logging.getLogger(__name__)


class ResultConsumer(Protocol):
    """Whatever is to know of verdicts."""

    def update(self, result: Result) -> None:
        """Take one in; never waits."""


class RunProcessor:
    """Judges one run, and shows and tells what comes of it; see `feed`.

    `path` is of the database that `connection` is to, `sinks` tell people. `machine` gives what is
    known of this node, `rings` those of its ranks, `clock` seconds since the epoch.
    """

    def __init__(  # noqa: PLR0913 - the parts that an agent is made of
        self,
        run: str,
        path: Path,
        connection: sqlite3.Connection,
        settings: Settings,
        counters: Counters,
        *,
        sinks: dict[str, Sink],
        read_node: Callable[[], NodeMeasurements],
        live_rings: Callable[[], list[RingReader]],
        cluster_status: Callable[[], Mapping[str, Any]] = dict,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run, self.connection, self.counters = run, connection, counters
        makers = build_detectors(settings)
        self.pipeline = Pipeline(makers, counters, build_causes())
        self.journal = Journal(connection)
        self.history = History(connection)
        severities = {name: make().severity for name, make in makers.items()}
        self.exposition = Exposition(
            counters,
            severities,
            settings.per_rank_limit,
            run,
            machine=read_node,
            cluster_status=cluster_status,
        )
        self.notification_policy = NotificationPolicy(
            connection, sinks, RunTier(settings.tier), clock
        )
        self.samples = SampleStore(connection, settings.max_samples)
        self.onset_worker = OnsetWorker(path, estimate_incident_onset, self.exposition.set_onset)
        self.action_planner = ActionPlanner(
            connection,
            settings.critical_actions(),
            live_rings,
            lambda: self.notification_policy.suppression,
        )
        self.restorable_consumers = (self.exposition, self.notification_policy, self.action_planner)
        self.consumers: tuple[ResultConsumer, ...] = (
            self.history,
            *self.restorable_consumers,
            self.samples,
            self.onset_worker,
        )
        self._pending_input: list[RecordOrBatch] = []
        self.stop_record: Record | None = None
        """How the run ended, until somebody has taken note."""

    def poll_silences(self) -> bool:
        """Take up what people want to be told of; whether anything was told that waited for it."""
        if self.notification_policy.poll():
            self.exposition.set_suppression(self.notification_policy.suppression)
        due = self.notification_policy.due_notifications(self.pipeline.current_notifications)
        if due:
            with database.transaction(self.connection):
                self.notification_policy.enqueue_pending(due)
        self.action_planner.poll()
        return bool(due)

    def process(self, entry: RecordOrBatch) -> bool:
        """What was read through the whole house; whether a page was queued because of it."""
        self._update_counters(entry)
        if isinstance(entry, RecordBatch):
            self.exposition.update_batch(entry)
        verdicts = [*self.pipeline.process(entry)]
        for verdict in verdicts:
            self._publish(verdict)
            if verdict.record.rank == WHOLE_RUN and verdict.record.event is Event.STOP:
                self.stop_record = verdict.record
        moved = any(verdict.notifications or verdict.changed_incidents for verdict in verdicts)
        told = [page for verdict in verdicts for page in verdict.case_notifications]
        queued = bool(told) and self.notification_policy.enqueue(told)
        if moved or len(verdicts) > 1 or not _is_empty_heartbeat(entry):
            self._pending_input.append(entry)
        return queued

    def persist(self) -> None:
        """Store what was fed since the last time."""
        self.journal.append(self._pending_input)
        self._pending_input = []

    def show_local_records(self, records: Iterable[Record]) -> None:
        """Show how the ranks of this node are, though they are judged elsewhere."""
        for record in records:
            self.exposition.update(Result(record))

    def snapshot(self) -> None:
        """Store the memory of everything so far; the journal behind it is no longer needed."""
        state = self.pipeline.serialize()
        if state is not None:
            self.journal.store_snapshot(state)

    def restore(self) -> None:
        """Go on where the last one was when it was killed."""
        state = self.journal.load_snapshot()
        if state is not None and not self.pipeline.restore(state):
            self.pipeline.engine.incident_book.last_episodes = self.history.last_episodes()
        for entry in self.journal.entries_since_snapshot(self.run):
            # Its consequences were stored with it; only the memory of it is built again.
            for _ in self.pipeline.process(entry):
                pass
        for record in self.history.latest_records(self.run):
            for outlet in self.restorable_consumers:
                outlet.update(Result(record))
            # An agent killed just then may not have come to write it.
            self.stop_record = record if record.event is Event.STOP else None
        for record in self.history.run_metadata.to_records(self.run):
            self.exposition.update(Result(record))
        self.exposition.restore(
            self.pipeline.firing_incidents(), self.pipeline.current_notifications()
        )
        self.onset_worker.restore(self.pipeline.firing_incidents())

    def _publish(self, result: Result) -> None:
        record = result.record
        # What one rank says of a step concerns only whoever shows how the ranks are.
        plain = record.rank != WHOLE_RUN and record.event is Event.STEP
        for outlet in (self.exposition,) if plain else self.consumers:
            try:
                outlet.update(result)
            except sqlite3.Error:
                # Nothing of this turn is kept then, and all of it is read again.
                raise
            except SKIPPED_ERRORS:
                log.exception("A verdict cannot be shown: it is left aside")
                self.counters.add("sentinel_dropped_records_total", "publishing_failed")

    def _update_counters(self, entry: RecordOrBatch) -> None:
        if isinstance(entry, RecordBatch):
            # Of numbers that are all finite the sum may not be: then they are looked at.
            if not isfinite(sum(map(sum, entry.rows))):
                for record in entry.records():
                    self._update_counters(record)
        elif entry.rank == WHOLE_RUN:
            for name, errors in self.pipeline.engine.error_counts.items():
                self.counters.set("sentinel_detector_errors_total", name, errors)
        # A setting may be infinite, and a reward that does not apply to a text is no number.
        elif entry.event in (Event.STEP, Event.EVAL) and not isfinite(sum(entry.values.values())):
            for name, value in entry.values.items():
                if not isfinite(value):
                    self.counters.add("sentinel_nonfinite_total", canonical_name(name))


def _is_empty_heartbeat(entry: RecordOrBatch) -> bool:
    """Whether it is a tick that tells of no machine: one that changed nothing is not kept."""
    if isinstance(entry, RecordBatch) or entry.event is not Event.HEARTBEAT:
        return False
    return NODE_SIGNALS.isdisjoint(entry.values)
