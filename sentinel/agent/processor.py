"""Processes the records of one run: pipeline, storage, metrics and notifications.

All consequences of a record are stored in the transaction of the caller. A processor that takes
over from a killed agent restores the last snapshot and replays the journal behind it.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from sentinel.actions.planner import ActionPlanner
from sentinel.agent.config_alert import ConfigAlert, alert_name
from sentinel.agent.onset_worker import OnsetWorker
from sentinel.agent.row_collector import RowCollector
from sentinel.agent.storage_alert import StorageAlert
from sentinel.agent.storage_alert import alert_name as storage_alert_name
from sentinel.cluster.agent_role import NODE_LOSS_DETECTOR, AgentRole
from sentinel.config.settings import Settings
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Counters
from sentinel.model.delivery import Sink
from sentinel.model.finding import Severity
from sentinel.model.incident import IncidentState, Onset, Resolution, RunTier
from sentinel.model.notification import Notification, RunContext
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import RecordBatch, RecordOrBatch, unpack_matrix
from sentinel.notify import outbox
from sentinel.notify.health_ping import HealthPing
from sentinel.notify.policy import NotificationPolicy
from sentinel.notify.recipients import Recipients
from sentinel.notify.run_context import RunContextReader, dashboard_of
from sentinel.pipeline import pipeline
from sentinel.pipeline.engine import Result
from sentinel.pipeline.incidents import ACKNOWLEDGED_KEY, outlives_run
from sentinel.pipeline.onset_process import OnsetProcess
from sentinel.pipeline.pipeline import SKIPPED_ERRORS
from sentinel.signals.catalogue import canonical_name
from sentinel.signals.coverage import coverage_text
from sentinel.signals.hardware import NODE_SIGNALS, NodeMeasurements
from sentinel.signals.run_metadata import NAME_KEY, PROJECT_KEY, TAGS_KEY, join_tags
from sentinel.store import database
from sentinel.store.baselines import BaselineMemory, BaselineStore
from sentinel.store.history import History
from sentinel.store.journal import Journal
from sentinel.store.samples import SampleStore
from sentinel.store.storage_monitor import StorageMonitor, reading_storage
from sentinel.transport.launch_status import read_launch_status
from sentinel.transport.paths import BASELINES_NAME, home_dir
from sentinel.transport.ring import RingReader

log = logging.getLogger(__name__)

DELIVERIES_INTERVAL_SECONDS = 1.0
"""Interval at which undelivered notifications are counted."""


class ResultConsumer(Protocol):
    """Something that is updated with every result."""

    def update(self, result: Result) -> None:
        """Update from one result; must not block."""


class RunProcessor:
    """Processes the records of one run; see `process`.

    `path` is the database of `connection`. `read_node` returns the hardware metrics of this node,
    `live_rings` the rings of its ranks, `ring_paths` those of the newest attempt by rank,
    `loop_seconds` the seconds since the last turn of the agent's loop, and `clock` seconds since
    the epoch.
    """

    def __init__(  # noqa: PLR0913 - the components of an agent
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
        ring_paths: Callable[[], Mapping[int, Path]] = dict,
        cluster_status: Callable[[], Mapping[str, Any]] = dict,
        command_problem: Callable[[], str] = str,
        storage: StorageMonitor | None = None,
        loop_seconds: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run, self.connection, self.counters, self.clock = run, connection, counters, clock
        self.storage = StorageMonitor() if storage is None else storage
        self.pipeline = pipeline.build(settings, counters)
        self.journal = Journal(connection)
        self.history = History(connection)
        factories = self.pipeline.engine.detector_factories
        severities = {name: make().severity for name, make in factories.items()}
        self.exposition = Exposition(
            counters,
            severities,
            settings.per_rank_limit,
            run,
            machine=read_node,
            cluster_status=cluster_status,
            readable_signals=self.pipeline.readable_signals,
            sinks=tuple(sinks),
            ignored_settings=tuple(sorted(settings.config_errors)),
            dashboard_url=dashboard_of(run, settings.dashboard_url),
            storage=lambda: self.storage.state,
            loop_seconds=loop_seconds,
            clock=clock,
        )
        self._labels = {PROJECT_KEY: settings.project, TAGS_KEY: join_tags(settings.tags)}
        self.recipients = Recipients.of_settings(settings, sinks)
        self.context_reader = RunContextReader(
            connection, settings.public_url, settings.dashboard_url, is_drill=settings.drill
        )
        self.notification_policy = NotificationPolicy(
            connection, self.recipients, RunTier(settings.tier), clock, self._describe_run
        )
        reads_again_until = self.storage.reads_again_until
        self.samples = SampleStore(connection, settings.max_samples, reads_again_until)
        self.row_collector = RowCollector(connection, ring_paths, is_on=settings.capture.rows)
        onset_process = OnsetProcess()
        self.onset_worker = OnsetWorker(onset_process.estimate, onset_process.kill)
        with reading_storage():
            self.action_planner = ActionPlanner(
                connection,
                settings.actions.on_critical,
                live_rings,
                lambda: self.notification_policy.suppression,
                firing_incidents=lambda: sum(
                    each.severity is not Severity.INFO for each in self.pipeline.firing_incidents()
                ),
                command_problem=command_problem,
                not_before=reads_again_until,
                is_shadow=settings.actions.mode == "shadow",
            )
        self.restorable_consumers = (self.exposition, self.notification_policy, self.action_planner)
        self.consumers: tuple[ResultConsumer, ...] = (
            self.history,
            *self.restorable_consumers,
            self.samples,
        )
        self.baseline_memory: BaselineMemory | None = None
        if settings.baselines:
            # The run directory in shared memory has copies of them.
            is_home = path.parent.parent.parent == home_dir()
            store = BaselineStore((home_dir() if is_home else path.parent) / BASELINES_NAME)
            self.baseline_memory = BaselineMemory(
                run, self.pipeline.engine, store, used=path.parent / "baseline.json"
            )
            self.consumers += (self.baseline_memory,)
        self.health_ping: HealthPing | None = None
        if settings.ping_url is not None:
            self.health_ping = HealthPing(settings.ping_url)
            self.consumers += (self.health_ping,)
        for name, message in settings.config_errors.items():
            log.warning("%s It is ignored.", message)
            counters.set("sentinel_config_errors_total", name, 1)
        self.config_alert = ConfigAlert(
            run, settings.config_errors, was_notified=outbox.is_open(connection, alert_name(run))
        )
        self.storage_alert = StorageAlert(
            run,
            lambda: self.storage.state,
            lambda number: outbox.is_open(connection, storage_alert_name(run, number)),
        )
        self._pending_input: list[RecordOrBatch] = []
        self._reads_again = reads_again_until > 0.0
        self._has_stated_coverage = False
        self._clock, self._deliveries_polled_at = clock, 0.0
        self.stop_record: Record | None = None
        """The STOP of the run; the agent resets it after writing the outcome."""
        self.has_stopped = False

    def poll_silences(self) -> bool:
        """Apply changed silences and queue notifications that are due; whether any was queued."""
        acknowledged: list[Notification] = []
        if self.notification_policy.poll():
            self.exposition.set_suppression(self.notification_policy.suppression)
            acknowledged = self.notification_policy.acknowledged_notifications(
                self._open_notifications
            )
        due = self.notification_policy.due_notifications(self._open_notifications)
        is_queued = bool(due)
        if due or acknowledged:
            with database.transaction(self.connection, mode="immediate"):
                self.notification_policy.enqueue_pending(due)
                is_queued |= self.notification_policy.enqueue_acknowledged(acknowledged)
        self.action_planner.poll()
        self.row_collector.poll()
        self._poll_deliveries()
        return is_queued

    def _poll_deliveries(self) -> None:
        now = self._clock()
        if abs(now - self._deliveries_polled_at) >= DELIVERIES_INTERVAL_SECONDS:
            self._deliveries_polled_at = now
            # A sink that was removed from the settings is none any more.
            problems = outbox.delivery_problems(self.connection)
            routes = self.recipients.routes
            self.exposition.set_delivery_problems(each for each in problems if each.sink in routes)

    def process(self, entry: RecordOrBatch) -> bool:
        """Process one entry and publish its results; whether a notification was queued."""
        entry = self._with_acknowledgements(entry)
        self._update_counters(entry)
        if isinstance(entry, RecordBatch):
            self.exposition.update_batch(entry)
        results = [self._with_context(result) for result in self.pipeline.process(entry)]
        notifications: list[Notification] = []
        for result in results:
            self._publish(result)
            notifications += [
                *result.case_notifications,
                *self.config_alert.update(result.record),
                *self.storage_alert.update(result.record),
            ]
            if result.record.rank == WHOLE_RUN and result.record.event is Event.STOP:
                self.stop_record, self.has_stopped = result.record, True
        has_changes = any(result.notifications or result.changed_incidents for result in results)
        is_queued = bool(notifications) and self.notification_policy.enqueue(notifications)
        if has_changes or len(results) > 1 or not _is_empty_heartbeat(entry):
            self._pending_input.append(entry)
        return is_queued

    def _with_acknowledgements(self, entry: RecordOrBatch) -> RecordOrBatch:
        """A heartbeat with the acknowledgements that end an incident, so that the journal has them.

        Replaying the journal ends it again at the same record.
        """
        suppression = self.notification_policy.suppression
        if not suppression.acks or isinstance(entry, RecordBatch):
            return entry
        if entry.event is not Event.HEARTBEAT or entry.rank != WHOLE_RUN:
            return entry
        acknowledged = [
            each.key.detector
            for each in self.pipeline.firing_incidents()
            if outlives_run(each) and suppression.acknowledgement(each)
        ]
        if not acknowledged:
            return entry
        names = {ACKNOWLEDGED_KEY: ",".join(acknowledged)}
        return replace(entry, attributes={**entry.attributes, **names})

    def pop_coverage_text(self) -> str:
        """What of the run is not monitored: once, after some records or at its end; else ""."""
        coverage = self.exposition.coverage
        is_due = coverage.is_settled or (self.has_stopped and coverage.record_count)
        if self._has_stated_coverage or not is_due:
            return ""
        self._has_stated_coverage = True
        return coverage_text(coverage.is_blind, coverage.unmonitored)

    def _open_notifications(self) -> Iterator[Notification]:
        yield from self.pipeline.current_notifications()
        for alert in (self.config_alert, self.storage_alert):
            if alert.opening is not None:
                yield alert.opening

    def _describe_run(self, notification: Notification) -> RunContext:
        return self.context_reader.read(notification, self.history.run_metadata.as_dict())

    def _with_context(self, result: Result) -> Result:
        """The result whose case notifications name where the run can be found, and its rows."""
        self._update_safely(self.row_collector, result)
        if not result.case_notifications:
            return result
        described = (
            replace(each, context=self._describe_run(each)) for each in result.case_notifications
        )
        return replace(result, case_notifications=tuple(described))

    def show_open_cases(self) -> None:
        """Export the open cases, with the address of the agent's page once that is known."""
        cases = (
            replace(each, context=self._describe_run(each))
            for each in self.pipeline.current_notifications()
        )
        self.exposition.restore(self.pipeline.firing_incidents(), cases)

    def poll_onsets(self) -> list[Record]:
        """Records of the onsets that were estimated since the last call; queue what waits."""
        waiting = self.pipeline.undated_incidents
        records = [
            self._onset_record(request.incident, onset)
            for request, onset in self.onset_worker.poll()
            # One that opened again meanwhile waits for another estimate.
            if waiting.get(request.incident) == request
        ]
        if not records:
            self.onset_worker.enqueue(waiting.values())
        return records

    def _onset_record(self, incident: str, onset: Onset | None) -> Record:
        values = {}
        if onset is not None:
            values = {"step": onset.step, "earliest": onset.earliest, "latest": onset.latest}
        return Record(
            self.run, WHOLE_RUN, 0, self._clock(), Event.ONSET, values, {"incident": incident}
        )

    def persist(self) -> None:
        """Append the entries processed since the last call to the journal."""
        self.journal.append(self._pending_input)
        self._pending_input = []

    def show_local_records(self, records: Iterable[Record]) -> None:
        """Export metrics of the ranks of this node, whose records the head processes."""
        for record in records:
            self.exposition.update(Result(record))

    def update_losses(self, role: AgentRole) -> None:
        """Take back notifications of a lost head or node that returned before they were sent.

        If it is lost again while the incident is open, they are queued again.
        """
        for case in self.pipeline.current_notifications():
            if case.incident.key.detector != NODE_LOSS_DETECTOR or case.others:
                continue
            if role.is_loss_over(case.incident):
                outbox.withdraw(self.connection, case.incident.name)
            elif case.incident.state is IncidentState.FIRING and role.has_losses():
                outbox.restore_withdrawn(self.connection, case.incident.name, self.clock())

    def snapshot(self) -> None:
        """Store the state of the pipeline; the journal up to now is dropped."""
        state = self.pipeline.serialize()
        if state is not None:
            self.journal.store_snapshot(state)

    def restore(self) -> None:
        """Continue from the state that the last agent stored."""
        state = self.journal.load_snapshot()
        if state is None:
            self._restore_episodes(can_continue=True)
        elif not self.pipeline.restore(state):
            self._restore_episodes(can_continue=False)
        if self.baseline_memory is not None:
            self.baseline_memory.metadata |= self.history.run_metadata.as_dict()
            self.baseline_memory.is_healthy = not self.history.has_alarms()
            self.baseline_memory.restore()
        self._process_journal()
        self._drop_closed()
        self.exposition.set_start_time(self.history.first_time())
        latest_records = self.history.latest_records(self.run)
        self.storage_alert.has_started = bool(latest_records)
        for record in latest_records:
            for consumer in self.restorable_consumers:
                consumer.update(Result(record))
            # An agent that was killed at that point may not have written the outcome.
            self.stop_record = record if record.event is Event.STOP else None
        # After these records, whose time it includes.
        self.exposition.set_time_use(self.pipeline.time_use)
        self.exposition.set_counts(
            self.history.event_count(Event.STEP), self.history.event_count(Event.SAVE)
        )
        for record in self.history.run_metadata.to_records(self.run):
            self.exposition.update(Result(record))
        self._store_labels()
        if self.health_ping is not None:
            self.health_ping.restore(
                self.pipeline.current_notifications(),
                is_running=bool(latest_records) and self.stop_record is None,
            )
        self.show_open_cases()

    def _process_journal(self) -> None:
        """Rebuild the state of the pipeline; the consequences of these entries are stored."""
        for entry in self.journal.entries_since_snapshot(self.run):
            for result in self.pipeline.process(entry):
                self.pipeline.time_use.update(result.record, is_stalled=False)
                # A TRAINING dropped the baseline; the one chosen by its metadata is recorded.
                if self.baseline_memory is not None and result.record.event is Event.METADATA:
                    self.baseline_memory.restore()

    def _drop_closed(self) -> None:
        """Drop the incidents that another process closed while no agent served the run."""
        firing = {each.name for each in self.pipeline.firing_incidents()}
        resolutions = {
            each["name"]: Resolution(each["resolution"])
            for each in (self.history.incidents() if firing else [])
            if each["name"] in firing and each["state"] == IncidentState.RESOLVED.value
        }
        if self.pipeline.drop_closed(resolutions):
            # The journal behind the last snapshot does not have the end.
            with database.transaction(self.connection, mode="immediate"):
                self.snapshot()

    def _store_labels(self) -> None:
        """Store project and tags, by which the list of runs can be grouped, with the metadata.

        So is the name of `sentinel run --run`, unless the script gave the run another one.
        """
        stored = self.history.run_metadata.as_dict()
        labels = {key: text for key, text in self._labels.items() if text or key in stored}
        launch = read_launch_status(self.run)
        if launch is not None and launch.name not in {"", self.run}:
            labels[NAME_KEY] = str(stored.get(NAME_KEY) or launch.name)
        if labels:
            self.store_metadata(labels)

    def store_metadata(self, texts: Mapping[str, str]) -> None:
        """Store metadata that no rank reports; detectors do not see them."""
        record = Record(self.run, WHOLE_RUN, 0, self._clock(), Event.METADATA, attributes=texts)
        with database.transaction(self.connection, mode="immediate"):
            self.history.run_metadata.update(record)
        self.exposition.update(Result(record))

    def _restore_episodes(self, *, can_continue: bool) -> None:
        """Number incidents as before; a detector continues its open one only if `can_continue`."""
        found = outbox.episodes(self.connection)
        for key, episodes in self.history.episodes().items():
            found[key] = found.get(key, {}) | episodes
        self.pipeline.engine.incident_book.known_episodes = {
            key: [
                replace(each, is_open=each.is_open and can_continue)
                for _, each in sorted(episodes.items())
            ]
            for key, episodes in found.items()
        }

    def keep_stored_history(self) -> None:
        """Keep what is stored, though records are read again."""
        self._reads_again = False

    def _begin_reading_again(self, record: Record) -> None:
        """Let the records from this one on replace those that are stored."""
        if record.rank == WHOLE_RUN and record.event not in {Event.HEARTBEAT, Event.ONSET}:
            self._reads_again = False
            self.history.delete_since(record.time)

    def _publish(self, result: Result) -> None:
        record = result.record
        if self._reads_again:
            self._begin_reading_again(record)
        # The values of one rank are only exported as metrics.
        is_rank_step = record.rank != WHOLE_RUN and record.event is Event.STEP
        for consumer in (self.exposition,) if is_rank_step else self.consumers:
            self._update_safely(consumer, result)

    def _update_safely(self, consumer: ResultConsumer, result: Result) -> None:
        try:
            consumer.update(result)
        except sqlite3.Error:
            # The transaction is rolled back, and its records are read again.
            raise
        except SKIPPED_ERRORS:
            log.exception("A result cannot be published and is skipped")
            self.counters.add("sentinel_dropped_records_total", "publishing_failed")

    def _update_counters(self, entry: RecordOrBatch) -> None:
        if isinstance(entry, RecordBatch):
            # The sum of finite numbers can overflow, so a sum that is not finite is examined.
            if not isfinite(sum(unpack_matrix(entry.matrix))):
                for record in entry.records():
                    self._update_counters(record)
        elif entry.rank == WHOLE_RUN:
            for name, errors in self.pipeline.engine.error_counts.items():
                self.counters.set("sentinel_detector_errors_total", name, errors)
        # In other events, infinite settings and NaN rewards of texts are valid.
        elif entry.event in (Event.STEP, Event.EVAL) and not isfinite(sum(entry.values.values())):
            for name, value in entry.values.items():
                if not isfinite(value):
                    self.counters.add("sentinel_nonfinite_total", canonical_name(name))


def _is_empty_heartbeat(entry: RecordOrBatch) -> bool:
    """Whether it is a heartbeat without hardware metrics, which need not be in the journal."""
    if isinstance(entry, RecordBatch) or entry.event is not Event.HEARTBEAT:
        return False
    return NODE_SIGNALS.isdisjoint(entry.values)
