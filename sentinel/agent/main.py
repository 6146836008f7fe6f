"""The agent of one run: builds the components, then reads, processes and stores in a loop.

Each iteration polls the rings and commits, in one transaction, the records read, their results and
the read positions. If the agent is killed, the next one restores the last snapshot, processes the
journal written since, and continues to read there: no record is lost, and no notification is sent
twice.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from secrets import token_urlsafe
from threading import Event as Flag
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sentinel.agent.dead_run_closer import DeadRunCloser
from sentinel.agent.home_pruner import HomePruner
from sentinel.agent.processor import RunProcessor
from sentinel.agent.provenance_worker import ProvenanceWorker
from sentinel.agent.registration import AgentRegistration
from sentinel.agent.run_directory import RunDirectory
from sentinel.agent.summary_writer import SummaryWriter
from sentinel.agent.termination_message import STOPPED_TEXT, termination_log, write_message
from sentinel.agent.trainjob_status import TrainJobStatus
from sentinel.agent.turn_limit import TurnLimit
from sentinel.cluster.agent_role import AgentRole
from sentinel.config.settings import Settings, build_sinks
from sentinel.live.node.node_metrics import NodeMetrics, output_dir
from sentinel.live.provenance.run_provenance import ProvenanceReader
from sentinel.live.rings import (
    FAILURE_SETTLE_SECONDS,
    SCAN_INTERVAL_SECONDS,
    LiveRings,
    remove_stale_rings,
)
from sentinel.metrics.cluster_status import head_address
from sentinel.model.counters import Counters
from sentinel.model.finding import Severity
from sentinel.model.record import Event, Record
from sentinel.model.record_batch import RecordOrBatch, coalesce
from sentinel.notify import outbox
from sentinel.notify.dispatcher import Dispatcher
from sentinel.notify.report_process import build_report
from sentinel.notify.report_sender import MAX_REPORT_BYTES, ReportSender
from sentinel.notify.sink_worker import DeliveryTiming
from sentinel.pipeline.incidents import FAILURE_DETECTORS, outlives_run
from sentinel.store import database
from sentinel.store.history import History
from sentinel.store.journal import Journal
from sentinel.store.recovery import open_storage
from sentinel.store.retention import HistoryRetention
from sentinel.store.run_reader import RunReader
from sentinel.store.sent_log import SentLog
from sentinel.store.storage_keeper import StorageKeeper
from sentinel.store.storage_monitor import (
    FailureKind,
    StorageMonitor,
    classify,
    reading_storage,
)
from sentinel.transport.command_page import Command
from sentinel.transport.identity import Identity
from sentinel.transport.paths import SENT_LOG_NAME, SETTLED_NAME, home_dir, ring_dir
from sentinel.transport.replaced_file import replacing
from sentinel.transport.ring import ReadPosition, RingReader
from sentinel.web.server import WebServer

if TYPE_CHECKING:
    from sentinel.notify.slack_buttons import SlackButtons
    from sentinel.readers.sample_files import SamplePoller
    from sentinel.web.agent_site import AgentSite

log = logging.getLogger(__name__)

POLL_INTERVAL_SECONDS = 0.05
POLLS_PER_GAP = 4
"""Polls in as long as there was no record: the interval grows up to that of scans for rings."""
ENDED_POLL_INTERVAL_SECONDS = 1.0
"""Longest poll interval once every rank has ended, until the next attempt begins."""
MULTI_NODE_POLL_INTERVAL_SECONDS = 0.2
"""Poll interval of a run on several nodes, at which nodes exchange messages too."""
SNAPSHOT_INTERVAL_SECONDS, MAX_ENTRIES_PER_SNAPSHOT = 30.0, 10_000
"""When a snapshot is made, or once the journal is long; the next agent processes the records since
the last one again."""
REPORT_SECONDS = 1.0
"""Interval at which the head reports on the run to the other nodes."""
MAX_FINISH_SECONDS = 2.0
"""How long an agent that ends thins the history and returns free pages to the disk."""
FIRST_TRY_SECONDS = 10.0
"""How long an agent that ends waits for the first try of each notification."""
STOP_GRACE_SECONDS = 2.0
"""How long an agent that is signalled to stop waits for running ranks to end."""
DRAIN_SECONDS = 10.0
"""How long an agent that stops still reads; schedulers kill it after 30 seconds."""
DELIVERY_TIMEOUT_SECONDS = 20.0
"""How long an agent whose storage failed waits for requests that are being sent."""
REPORT_TIMEOUT_SECONDS = 60.0
"""How long an agent that ends waits for reports that are being sent."""
MAX_ONSET_WAIT_SECONDS = 10.0
"""How long an agent whose run ended waits for the onset of an incident."""
UNDELIVERED_TIMEOUT_SECONDS = 24 * 3600.0
"""Time after the end of a run for which the agent keeps trying to deliver notifications."""


class RecordSource(Protocol):
    """What the agent polls for records: the rings of this node's ranks, or a log."""

    @property
    def attempt(self) -> int:
        """The newest attempt of the run; -1 before the first record."""

    @property
    def ended(self) -> bool:
        """Whether the newest attempt ended."""

    @property
    def ranks_expected(self) -> bool:
        """Whether there are ranks, or some may still start."""

    @property
    def first_identity(self) -> Identity | None:
        """Identity of the lowest rank on this node; None if there is none yet."""

    @property
    def has_unread(self) -> bool:
        """Whether the last `poll` reached its limit."""

    def poll(self, max_records: int = ..., max_step_index: float = ...) -> list[Record]:
        """The records since the last call, up to about `max_records`; never waits.

        No further ones of ranks that are read up to `max_step_index`.
        """

    def wait(self, seconds: float) -> None:
        """Wait; may return early if there may be records."""

    def request_stop(self, signal_name: str) -> None:
        """Note that this agent received a signal to end, which the ranks may have received too."""

    def positions(self) -> dict[str, ReadPosition]:
        """Read positions to store, from which the next agent continues."""

    def pids(self) -> dict[int, int]:
        """Process ids of the running ranks, by rank."""

    def ring_paths(self) -> Mapping[int, Path]:
        """The rings of the newest attempt's ranks on this node, by rank."""

    def live_readers(self) -> list[RingReader]:
        """The readers of the rings whose rank has not ended."""

    def prepare_final_poll(self) -> bool:
        """Make the next poll return records held back too; whether there are any."""

    def remove_rings(self) -> None:
        """Remove the rings of an ended run."""

    def close(self) -> None:
        """Release what is open, for another source of the same records."""


def _do_nothing() -> None:
    pass


class Service(NamedTuple):
    """A part of the agent beside reading and evaluating: what starts it, and what stops it in time.

    `poll` is called after each turn of the loop, in the same thread; it never waits.
    """

    start: Callable[[], object] = _do_nothing
    poll: Callable[[], object] = _do_nothing
    stop: Callable[[], object] = _do_nothing


class Agent:
    """Serves one run on this node until it ended, notifications are sent and `linger` is over.

    `storage` collects the failures of the storage; `predecessor` is the agent of this process that
    such a failure ended. Raises AlreadyServedError if another agent serves the run, OSError if no
    port is free, StorageFailure if the next agent must use another storage.
    """

    def __init__(
        self,
        run: str,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        storage: StorageMonitor | None = None,
        predecessor: Agent | None = None,
    ) -> None:
        self.run = run
        self.counters: Counters = Counters() if predecessor is None else predecessor.counters
        self.port: int = settings.port if predecessor is None else predecessor.port
        self.storage = StorageMonitor() if storage is None else storage
        self.settings = settings
        self.clock = clock
        self.registration = AgentRegistration(run, home_dir() / "targets", settings.targets_group)
        self.registration.acquire()
        self.stop_requested = Flag()
        self.stop_requested_at: float | None = None
        self.started_at = clock()
        self.ended_at: float | None = None
        self.last_snapshot_at = self.started_at
        self.entries_since_snapshot = 0
        self.delivery_timeout, self.report_timeout = 5.0, 0.0
        """How long services wait at the end for notifications and reports that are being sent."""
        self.turn_limit = TurnLimit()
        self.idle_since = -inf
        """Time since which no record is expected soon."""
        self.turned_at = inf
        """Time (monotonic) at which the last turn of the loop began; infinite outside the loop."""
        self.reported_at = self.settled_at = 0.0
        self.termination_log, self.termination_text = termination_log(os.environ), ""
        self.data_version = 0
        with self._undo_on_error(self.registration.release):
            self.run_directory = RunDirectory(
                self.registration, self.storage, self._retention, self.counters, clock
            )
        database_path = self.run_directory.database_path
        with self._undo_on_error(lambda: self.run_directory.close(ended=False)):
            self.connection = open_storage(database_path, self.storage, self.counters, clock)
            self.run_directory.note_opened()
        with self._undo_on_error(self._release_storage):
            self._build(database_path, predecessor, clock)
            with (
                self._undo_on_error(lambda: self.processor.onset_worker.stop(timeout=1.0)),
                reading_storage(),
            ):
                self.processor.restore()

    @contextmanager
    def _undo_on_error(self, undo: Callable[[], None]) -> Iterator[None]:
        """Call `undo` if the context raises; a failure of the storage is raised as that."""
        try:
            yield
        except BaseException as error:
            undo()
            self._raise_storage_failure(error)
            raise

    def _build(
        self, database_path: Path, predecessor: Agent | None, clock: Callable[[], float]
    ) -> None:
        """Build the components, which read what the last agent stored."""
        run, settings = self.run, self.settings
        self.sinks = build_sinks(settings)
        self.node_metrics = NodeMetrics(
            settings.node_poll_seconds,
            self.counters,
            home_dir() / "runs" / run,
            self._output_dir,
            self._rank_pids,
            clock,
        )
        sent_log = SentLog(ring_dir(run) / SENT_LOG_NAME)
        with reading_storage():
            sent_log.restore(self.connection)
            positions = Journal(self.connection).positions()
        former = None if predecessor is None else predecessor.source
        self.source: RecordSource = self._build_source(positions, former)
        with reading_storage():
            self.cluster_role = AgentRole(
                run,
                self.connection,
                self.counters,
                lambda: self.source.first_identity,
                configured_head=settings.cluster.head,
                token=settings.cluster.secret_token(),
                all_interfaces=settings.cluster.all_interfaces,
                max_spool_bytes=self.run_directory.max_spool_bytes,
                clock=clock,
            )
        self.processor: RunProcessor = RunProcessor(
            run,
            database_path,
            self.connection,
            settings,
            self.counters,
            sinks=self.sinks,
            read_node=self.node_metrics.latest,
            live_rings=self.source.live_readers,
            ring_paths=self.source.ring_paths,
            cluster_status=self.cluster_role.status,
            command_problem=self.cluster_role.command_problem,
            storage=self.storage,
            loop_seconds=self.loop_seconds,
            clock=clock,
        )
        self.report_sender = ReportSender(
            run,
            self.sinks,
            self.counters,
            lambda: build_report(
                run, database_path, max_bytes=MAX_REPORT_BYTES, with_samples=False
            ),
        )
        self.dispatcher: Dispatcher = Dispatcher(
            database_path,
            self.sinks,
            self.counters,
            clock,
            DeliveryTiming(max_per_hour=settings.max_notifications_per_hour),
            is_wanted=self.cluster_role.is_wanted,
            recipients=self.processor.recipients,
            on_database_error=self.storage.report,
            on_resolved=self.report_sender.enqueue,
            on_accepted=sent_log.append,
            predecessor=None if predecessor is None else predecessor.dispatcher,
        )
        self.slack_buttons: SlackButtons | None = None
        if self.sinks:
            from sentinel.notify.slack_buttons import SlackButtons  # noqa: PLC0415 - of a sink

            self.slack_buttons = SlackButtons(self.sinks, clock)
        self.sample_poller = self._build_sample_poller()
        # For other processes of this user, which find it in the registration.
        self.own_token = token_urlsafe(32)
        max_bytes = self.run_directory.max_database_bytes
        self.retention = self._retention(self.processor.history, max_bytes)
        self.home_pruner = HomePruner(home_dir(), settings.history.max_home_mb * 2**20, clock)
        reader = RunReader(database_path, self.storage.report, clock)
        self.server = WebServer(
            lambda: self._make_site(reader, database_path),
            host=settings.host,
            port=self.port,
            port_tries=settings.port_tries,
            # Without a port the run would not be monitored.
            any_port=True,
            # Open pages and links in notifications keep working.
            former_port=self.registration.former_port(),
            token=settings.secret_token(),
            own_token=self.own_token,
            web_config_file=settings.web_config_file,
            public_url=settings.public_url,
            loop_seconds=self.loop_seconds,
        )
        summary_writer = SummaryWriter(
            database_path.parent, self.processor.exposition.state, reader
        )
        self.trainjob_status = TrainJobStatus(
            os.environ,
            self.processor.exposition.state,
            lambda: self.cluster_role.role != "follower",
        )
        self.services = self._build_services(
            summary_writer,
            DeadRunCloser(settings, clock),
            StorageKeeper(database_path, self.storage),
        )

    def _build_services(
        self, summary_writer: SummaryWriter, closer: DeadRunCloser, keeper: StorageKeeper
    ) -> Sequence[Service]:
        """The services in the order in which they start; they stop in the opposite order."""
        reports, dispatcher, samples = self.report_sender, self.dispatcher, self.sample_poller
        onset_worker, ping = self.processor.onset_worker, self.processor.health_ping
        buttons = self.slack_buttons
        exporter = None
        if self.settings.otlp:
            from sentinel.metrics.otlp import OtlpExporter  # noqa: PLC0415 - few export

            registry = self.processor.exposition.registry
            exporter = OtlpExporter(registry, self.counters, self.run)
        privacy = self.settings.privacy
        provenance = ProvenanceWorker(
            ProvenanceReader(has_command=privacy.command),
            lambda: self.source.attempt,
            self._rank_pids,
            self.processor.store_metadata,
        )
        return (
            Service(stop=self.source.close),
            Service(self._listen, stop=self.server.stop),
            Service(stop=lambda: onset_worker.stop(timeout=0.5)),
            *([] if ping is None else [Service(ping.start, ping.confirm_agent, ping.stop)]),
            Service(closer.start, stop=closer.stop),
            Service(reports.start, stop=lambda: reports.stop(self.report_timeout)),
            Service(dispatcher.start, stop=lambda: dispatcher.stop(self.delivery_timeout)),
            *(
                []
                if buttons is None
                else [Service(poll=lambda: self._serve_buttons(buttons), stop=buttons.stop)]
            ),
            *([] if samples is None else [Service(stop=samples.stop)]),
            Service(self.node_metrics.start, stop=self.node_metrics.stop),
            *([] if exporter is None else [Service(exporter.start, stop=exporter.stop)]),
            Service(stop=self.cluster_role.stop),
            Service(summary_writer.start, stop=summary_writer.stop),
            Service(self.trainjob_status.start, stop=self.trainjob_status.stop),
            *([Service(poll=provenance.poll, stop=provenance.stop)] if privacy.provenance else []),
            # A receiver that it waits for responds while the others stop.
            Service(stop=lambda: closer.stop(timeout=0.0)),
            Service(keeper.start, stop=keeper.stop),
            Service(poll=self._show_settled),
            Service(poll=self._write_termination_message),
            Service(poll=self.retention.run_slice),
            Service(poll=self._copy_outcomes),
            Service(poll=lambda: self.home_pruner.poll(has_ended=self.ended_at is not None)),
        )

    def _retention(self, history: History, max_bytes: float = inf) -> HistoryRetention:
        """What bounds a history of the run."""
        limits = self.settings.history
        max_bytes = min(limits.max_mb * 2**20, max_bytes)
        return HistoryRetention(history, limits.full_steps, max_bytes)

    def _raise_storage_failure(self, error: BaseException) -> None:
        """Raise StorageFailure if that is what the error is."""
        if isinstance(error, Exception):
            self.storage.report(error)
            self.storage.check()

    def _build_source(
        self, positions: Mapping[str, ReadPosition], predecessor: RecordSource | None
    ) -> RecordSource:
        """The source of the run's records, which continues at `positions`."""
        return LiveRings(
            self.run,
            self.counters,
            positions,
            self.clock,
            self.node_metrics.new_values,
            keep_messages=self.settings.privacy.messages,
            predecessor=predecessor if isinstance(predecessor, LiveRings) else None,
        )

    def _rank_pids(self) -> dict[int, int]:
        return self.source.pids()

    def _output_dir(self) -> Path | None:
        return output_dir(self.processor.history.run_metadata.as_dict())

    def _why_not_notifying(self) -> str:
        """Why acknowledgements and silences have no effect here; empty if they have."""
        if self.cluster_role.role != "follower":
            return ""
        head = head_address(self.cluster_role.status())
        return (
            f"The head sends the notifications: ask the agent of that node ({head or 'unknown'})."
        )

    def _make_site(self, reader: RunReader, database_path: Path) -> AgentSite:
        """The page and the metrics of the run, for the server."""
        # With the server, at the first connection.
        from sentinel.web.agent_site import AgentSite  # noqa: PLC0415
        from sentinel.web.run_routes import RunView  # noqa: PLC0415
        from sentinel.web.suppression_api import SuppressionApi  # noqa: PLC0415

        report, exposition = self.storage.report, self.processor.exposition
        suppression = SuppressionApi(
            self.run, database_path, self._why_not_notifying, report, self.clock
        )
        view = RunView(
            self.run,
            reader,
            exposition.state,
            database_path,
            suppression,
            report,
            clock=self.clock,
        )
        return AgentSite(exposition.registry, view)

    def _build_sample_poller(self) -> SamplePoller | None:
        folder, marks = self.settings.samples_dir, self.processor.samples.file_marks()
        if folder is None:
            return None
        # Few runs have such files.
        from sentinel.readers.sample_files import SampleFiles, SamplePoller  # noqa: PLC0415

        return SamplePoller(SampleFiles(self.run, folder, self.counters, marks, self.clock))

    def serve(self) -> None:
        """Run the loop until the run is finished or `stop_requested` is set.

        Raises StorageFailure if another agent must continue with another storage.
        """
        self.turned_at = time.monotonic()
        try:
            for service in self.services:
                service.start()
            remove_stale_rings(self.clock())
            while not self._may_stop() and not self._is_finished():
                self.turned_at = time.monotonic()
                self.run_directory.check()
                self.storage.check()
                self.run_once()
                self.source.wait(self._poll_interval())
            self.turned_at = inf
            self._drain()
            # Not after an exception: memory then holds results that were never committed.
            with database.transaction(self.connection):
                self.processor.snapshot()
            self.retention.finish(MAX_FINISH_SECONDS)
            # The last records may have queued a notification.
            self._await_first_tries()
        except BaseException as error:
            self.turned_at = inf
            if classify(error) is FailureKind.UNUSABLE:
                self.run_directory.release_reserve()
                # What the workers store last must be in the copy, or it is sent twice.
                self.dispatcher.stop(DELIVERY_TIMEOUT_SECONDS)
                self.run_directory.rescue(self.connection)
            self.delivery_timeout = DELIVERY_TIMEOUT_SECONDS
            self._stop_services()
            self._release_storage()
            self._raise_storage_failure(error)
            raise
        # A scheduler that stops this agent kills it soon.
        self.report_timeout = 0.0 if self.stop_requested.is_set() else REPORT_TIMEOUT_SECONDS
        self._stop_services()
        if self.source.ended:
            self.source.remove_rings()
        self._release_storage(ended=self.source.ended)
        if self.source.ended:
            self.home_pruner.poll(has_ended=True)
        self.home_pruner.stop(timeout=5.0)

    def loop_seconds(self) -> float:
        """Seconds since the last turn of the loop began; 0 outside the loop. For any thread."""
        return max(0.0, time.monotonic() - self.turned_at)

    def _stop_services(self) -> None:
        for service in reversed(self.services):
            service.stop()

    def _listen(self) -> None:
        """Serve the page and the metrics, and let others find them."""
        self.port = self.server.start()
        url = self.registration.register(
            self.settings.host, self.port, self.own_token, self.server.certificate_file
        )
        self.run_directory.publish_target()
        self.processor.context_reader.agent_url = url
        self.processor.show_open_cases()
        log.info("Serving run %s at %s/metrics", self.run, url)

    def request_stop(self, signal_name: str) -> None:
        """Stop after that signal, once the ranks have ended or `STOP_GRACE_SECONDS` are over."""
        if self.stop_requested_at is None:
            self.stop_requested_at = self.clock()
            self.source.request_stop(signal_name)
        self.stop_requested.set()

    def _may_stop(self) -> bool:
        if not self.stop_requested.is_set():
            return False
        # A scheduler signals the ranks as well: record how they end.
        waited = inf if self.stop_requested_at is None else self.clock() - self.stop_requested_at
        return not self.source.pids() or not 0.0 <= waited < STOP_GRACE_SECONDS

    def _poll_interval(self) -> float:
        """Seconds until the next turn; none while it is known that there is more to read."""
        is_ahead = self.processor.pipeline.aligner.max_step_index < inf
        if (self.source.has_unread and not is_ahead) or self.cluster_role.has_unread:
            return 0.0
        if self.cluster_role.role in ("head", "follower"):
            return MULTI_NODE_POLL_INTERVAL_SECONDS
        gap = max(0.0, self.clock() - self.idle_since) / POLLS_PER_GAP
        longest = ENDED_POLL_INTERVAL_SECONDS if self.source.ended else SCAN_INTERVAL_SECONDS
        return min(max(POLL_INTERVAL_SECONDS, gap), longest)

    def run_once(self) -> None:
        """Read new records, process them, and commit records and results, all in about 0.1 s."""
        began = time.monotonic()
        if self.processor.poll_silences():
            self.dispatcher.wake()
        local_records = self.source.poll(
            self.turn_limit.max_records, self.processor.pipeline.aligner.max_step_index
        )
        if self.sample_poller is not None and self.source.attempt >= 0:
            local_records += self.sample_poller.poll(self.source.attempt)
        self._note_arrival({record.event for record in local_records})
        entries = self._exchange(local_records)
        if self.cluster_role.head is None:
            # A head does so with those of all nodes.
            entries = coalesce(entries)
        entries += self.processor.poll_onsets()
        if entries or self.cluster_role.has_unsaved_changes:
            self._commit(local_records, entries)
            if text := self.processor.pop_coverage_text():
                self.report_coverage(text)
        self._exchange_reports()
        self.cluster_role.after_commit()
        self.turn_limit.update(time.monotonic() - began, is_reached=self.source.has_unread)
        for service in self.services:
            service.poll()

    def _note_arrival(self, events: set[Event]) -> None:
        """Note when the last record arrived; what follows the end of a rank is expected soon."""
        if events - {Event.HEARTBEAT}:
            self.idle_since = self.clock() + FAILURE_SETTLE_SECONDS * (Event.STOP in events)

    def _exchange(self, local_records: list[Record]) -> list[RecordOrBatch]:
        """What this agent evaluates now, with the records of other nodes.

        Steps that a head reads again are left out: those of the other nodes are not read again.
        """
        until, first = self.storage.reads_again_until, self.source.first_identity
        if not until or first is None or first.local_world_size == first.world_size:
            return self.cluster_role.exchange(local_records)
        # The first call decides the role.
        entries = [] if self.cluster_role.role else self.cluster_role.exchange([])
        if self.cluster_role.role == "head":
            self.processor.keep_stored_history()
            local_records = [
                each for each in local_records if each.event is not Event.STEP or each.time > until
            ]
        return entries + self.cluster_role.exchange(local_records)

    def _exchange_reports(self) -> None:
        """Publish what the head judges and commands, once a second, or carry it out here."""
        now, planner = self.clock(), self.processor.action_planner
        if self.cluster_role.role == "head" and not 0 <= now - self.reported_at < REPORT_SECONDS:
            self.reported_at = now
            report = self.processor.exposition.report()
            if command := planner.announced_command():
                report["command"] = command.to_json()
            self.cluster_role.publish_report(report)
        if fields := self.cluster_role.received_report.get("command"):
            # Another version of sentinel may send something else.
            with suppress(ValueError, LookupError, TypeError):
                planner.receive(Command.from_json(fields))

    def _copy_outcomes(self) -> None:
        """Copy what sink workers and the page store: another agent must not send it again."""
        (version,) = self.connection.execute("pragma data_version").fetchone()
        if version != self.data_version:
            self.data_version = version
            self.run_directory.copy_soon()

    def _show_settled(self) -> None:
        """Let processes that wait at their end see that it was reported, once it was."""
        opened_at = max(
            (
                incident.opened_time
                for incident in self.processor.pipeline.firing_incidents()
                if outlives_run(incident)
            ),
            default=0.0,
        )
        if opened_at <= self.settled_at or outbox.has_untried(
            self.connection, self.sinks, self.clock() + FIRST_TRY_SECONDS
        ):
            return
        self.settled_at = opened_at
        with suppress(OSError), replacing(ring_dir(self.run) / SETTLED_NAME) as path:
            path.touch(mode=0o600)
            path.write_text(self._failure_text())
            os.utime(path, (opened_at, opened_at))

    def _write_termination_message(self) -> None:
        """Keep the message of this container up to date."""
        if self.termination_log is None:
            return
        text = self._failure_text()
        if text != self.termination_text:
            self.termination_text = text
            write_message(self.termination_log, text)

    def _failure_text(self) -> str:
        """How the run failed or was stopped; empty if it did not."""
        failures = [
            incident
            for incident in self.processor.pipeline.firing_incidents()
            if incident.key.detector in FAILURE_DETECTORS
        ]
        if not failures:
            return ""
        newest = max(failures, key=lambda each: each.opened_time)
        # `sentinel run` got the signal.
        stopped = f" {STOPPED_TEXT}" if newest.severity is Severity.INFO else ""
        return f"{newest.finding.summary}{stopped}"

    def _serve_buttons(self, buttons: SlackButtons) -> None:
        """Only the agent that notifies has the cases to which a button belongs."""
        if self.cluster_role.role == "follower":
            buttons.stop()
        else:
            buttons.start()

    def report_coverage(self, text: str) -> None:
        """Log once what of the run is not monitored."""
        log.warning("Run %s: %s.", self.run, text)

    def _drain(self) -> None:
        """Process records still held back: the signal that stops us may stop their ranks too."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while self.source.has_unread and time.monotonic() < deadline:
            self.run_once()
        has_pending = self.source.prepare_final_poll()
        if self.cluster_role.head is not None:
            self.cluster_role.head.is_shutting_down = has_pending = True
        if has_pending:
            self.run_once()

    def _await_first_tries(self) -> None:
        """Wait until each notification was sent once: no other agent may follow this one."""
        deadline = time.monotonic() + FIRST_TRY_SECONDS
        self.dispatcher.wake()
        while time.monotonic() < deadline and outbox.has_untried(
            self.connection, self.sinks, self.clock() + FIRST_TRY_SECONDS
        ):
            time.sleep(POLL_INTERVAL_SECONDS)

    def _commit(self, local_records: list[Record], entries: list[RecordOrBatch]) -> None:
        """Process `entries`, and store the results and read positions in one transaction."""
        # Immediate, because consumers read before they write, and sink workers write meanwhile.
        with database.transaction(self.connection, mode="immediate"):
            queued = [self.processor.process(entry) for entry in entries]
            self.processor.persist()
            if self.cluster_role.role == "follower":
                self.processor.show_local_records(local_records)
            if any(record.event is Event.HEARTBEAT for record in local_records):
                self.processor.update_losses(self.cluster_role)
            self.cluster_role.persist()
            if self.sample_poller is not None:
                self.processor.samples.store_file_marks(self.sample_poller.pop_fingerprints())
            if any(record.event is not Event.HEARTBEAT for record in local_records):
                self.processor.journal.store_positions(self.source.positions())
            self.entries_since_snapshot += len(entries)
            if (
                self.clock() - self.last_snapshot_at >= SNAPSHOT_INTERVAL_SECONDS
                or self.entries_since_snapshot >= MAX_ENTRIES_PER_SNAPSHOT
                or self.processor.journal.is_long
            ):
                self.last_snapshot_at, self.entries_since_snapshot = self.clock(), 0
                self.processor.snapshot()
        if any(queued):
            self.dispatcher.wake()
        if self.processor.stop_record is not None:
            self.registration.write_outcome(self.processor.stop_record)
            self.processor.stop_record = None

    def _is_finished(self) -> bool:
        now = self.clock()
        if not (self.source.ended and self.cluster_role.finished):
            self.ended_at = None
            return (
                not self.source.ranks_expected
                and now - self.started_at >= self.settings.first_rank_seconds
            )
        if self.ended_at is None:
            self.ended_at = now
        elapsed = now - self.ended_at
        # A command of `sentinel run` without a training leaves nothing to show.
        has_run = self.source.attempt >= 0 or self.processor.has_stopped
        if has_run and elapsed < self.settings.linger_seconds:
            return False
        if self.processor.onset_worker.is_busy and elapsed < MAX_ONSET_WAIT_SECONDS:
            return False
        undelivered = outbox.count_undelivered(self.connection, self.sinks)
        return not undelivered or elapsed >= UNDELIVERED_TIMEOUT_SECONDS

    def _release_storage(self, *, ended: bool = False) -> None:
        # The directory may be gone.
        with suppress(sqlite3.Error):
            self.connection.close()
        self.run_directory.close(ended=ended)
