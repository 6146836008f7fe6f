"""Agent: the composition root. It puts the concrete parts together and turns the crank.

Each turn polls the rings and commits, in one transaction, what was read, what it led to and where
reading has got to. Killed at any moment, the next agent restores the last snapshot, feeds itself
the journal behind it, and reads on: nothing is lost, and no page is made twice.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event as Flag

from sentinel.agent.processor import RunProcessor
from sentinel.agent.registration import AgentRegistration
from sentinel.cluster.agent_role import AgentRole
from sentinel.config.settings import Settings, build_sinks
from sentinel.live.node.node_metrics import NodeMetrics, output_dir
from sentinel.live.rings import LiveRings
from sentinel.live.stale_rings import remove_stale_rings
from sentinel.model.counters import Counters
from sentinel.model.record import Event, Record
from sentinel.model.record_batch import RecordOrBatch
from sentinel.notify import outbox
from sentinel.notify.dispatcher import Dispatcher
from sentinel.readers.sample_files import SampleFiles
from sentinel.readers.sample_poller import SamplePoller
from sentinel.store import database
from sentinel.store.history import History
from sentinel.store.journal import Journal
from sentinel.store.samples import newest_samples
from sentinel.transport.paths import home_dir, run_dir
from sentinel.transport.ring import RingReader
from sentinel.web.server import WebServer

log = logging.getLogger(__name__)

POLL_INTERVAL_SECONDS = 0.05
MULTI_NODE_POLL_INTERVAL_SECONDS = 0.2
"""Where ranks are on several nodes: what is said there comes no more often."""
SNAPSHOT_INTERVAL_SECONDS = 30.0
"""Between two; what was read since is kept as it came, and judged again by the next agent."""
FIRST_RANK_TIMEOUT_SECONDS = 120.0
"""How long an agent waits for the first ring before it takes the start for a mistake."""
UNDELIVERED_TIMEOUT_SECONDS = 24 * 3600.0
"""How long an agent whose run is over stays for pages that no receiver has taken yet."""


class Agent:
    """Serves one run on this node until it is over, its pages are out, and `linger` has passed.

    Raises AlreadyServedError if another agent has the run, OSError if no port is free.
    """

    def __init__(
        self, run: str, settings: Settings, clock: Callable[[], float] = time.time
    ) -> None:
        directory = run_dir(run)
        self.run = run
        self.settings = settings
        self.clock = clock
        self.registration = AgentRegistration(run, directory, home_dir() / "targets")
        self.registration.acquire()
        self.stop_requested = Flag()
        self.started_at = clock()
        self.ended_at: float | None = None
        self.last_snapshot_at = self.started_at
        self.counters = Counters()
        self._open_database(directory / "sentinel.db")
        self._build_components(directory / "sentinel.db")
        self.processor.restore()

    def _open_database(self, path: Path) -> None:
        try:
            self.connection = database.connect(path)
        except sqlite3.OperationalError:
            # Locked, or no room: it is whole, and the next start may find it free.
            raise
        except sqlite3.DatabaseError:
            # Unreadable state must not stop the watch: it is set aside for a person to look at.
            aside = path.with_name(f"{path.name}.corrupt-{int(self.started_at)}")
            path.rename(aside)
            for rest in ("-wal", "-shm"):
                path.with_name(path.name + rest).unlink(missing_ok=True)
            log.exception("The database cannot be read; it was moved to %s", aside)
            self.counters.add("sentinel_dropped_records_total", "database_corrupt")
            self.connection = database.connect(path)

    def _build_components(self, path: Path) -> None:
        self.sinks = build_sinks(self.settings)
        known = Journal(self.connection).positions()
        self.source = LiveRings(self.run, self.counters, known, self.clock)
        self.node_poller = NodeMetrics(
            self.settings.machine_seconds,
            self.counters,
            path.parent,
            lambda: output_dir(self.processor.history.run_metadata.as_dict()),
            self.source.pids,
            self.clock,
        )
        self.source.new_machine_values = self.node_poller.new_values
        self.processor = RunProcessor(
            self.run,
            path,
            self.connection,
            self.settings,
            self.counters,
            sinks=self.sinks,
            read_node=self.node_poller.latest,
            live_rings=self._live_rings,
            clock=self.clock,
        )
        self.cluster_role = AgentRole(
            self.run,
            self.connection,
            self.counters,
            lambda: self.source.first_identity,
            configured_head=self.settings.cluster.head,
            token=self.settings.cluster.secret_token(),
            clock=self.clock,
        )
        self.processor.exposition.cluster_state = self.cluster_role.status
        self.dispatcher = Dispatcher(path, self.sinks, self.counters, self.clock)
        self.sample_poller = self._build_sample_poller()
        self.server = WebServer(
            self.processor.exposition.registry,
            self.processor.exposition.state,
            lambda: _read_incidents(path),
            lambda step, limit: newest_samples(path, step, limit),
            host=self.settings.host,
            port=self.settings.port,
            port_tries=self.settings.port_tries,
            token=self.settings.secret_token(),
        )

    def _live_rings(self) -> list[RingReader]:
        return [rank.reader for rank in self.source.ranks.values() if not rank.ended]

    def _build_sample_poller(self) -> SamplePoller | None:
        folder, known = self.settings.samples_from, self.processor.samples.file_marks()
        if folder is None:
            return None
        return SamplePoller(SampleFiles(self.run, folder, self.counters, known, self.clock))

    def serve(self) -> None:
        """Work until the run is over, or until `stopping` is set."""
        port = self.server.start()
        url = self.registration.register(self.settings.host, port)
        log.info("Serving run %s at %s/metrics", self.run, url)
        self.dispatcher.start()
        self.node_poller.start()
        remove_stale_rings(self.clock())
        try:
            while not self.stop_requested.is_set() and not self._is_finished():
                self.run_once()
                shared = self.cluster_role.role in ("head", "follower")
                self.stop_requested.wait(
                    MULTI_NODE_POLL_INTERVAL_SECONDS if shared else POLL_INTERVAL_SECONDS
                )
            self._drain()
            # After a turn that failed, memory holds what was never stored: that is not kept.
            with database.transaction(self.connection):
                self.processor.snapshot()
        finally:
            self._shut_down()

    def run_once(self) -> None:
        """Read what is new, judge it, and commit both."""
        if self.processor.poll_silences():
            self.dispatcher.wake()
        read = self.source.poll()
        if self.sample_poller is not None and self.source.attempt >= 0:
            read += self.sample_poller.poll(self.source.attempt)
        entries = self.cluster_role.exchange(read)
        if entries or self.cluster_role.has_unsaved_changes:
            self._commit(read, entries)
        self.cluster_role.after_commit()

    def _drain(self) -> None:
        """Tell what waits for others to speak, or to come: whoever ends us may end them as well."""
        held = self.source.prepare_final_poll()
        if self.cluster_role.head is not None:
            self.cluster_role.head.is_shutting_down = held = True
        if held:
            self.run_once()

    def _commit(self, read: list[Record], entries: list[RecordOrBatch]) -> None:
        """Judge these entries, and store what came of them with how far all was read."""
        with database.transaction(self.connection):
            queued = [self.processor.process(entry) for entry in entries]
            self.processor.persist()
            if self.cluster_role.role == "follower":
                self.processor.show_local_records(read)
            self.cluster_role.persist()
            if self.sample_poller is not None:
                self.processor.samples.store_file_marks(self.sample_poller.pop_fingerprints())
            if any(record.event is not Event.HEARTBEAT for record in read):
                self.processor.journal.store_positions(self.source.positions())
            if self.clock() - self.last_snapshot_at >= SNAPSHOT_INTERVAL_SECONDS:
                self.last_snapshot_at = self.clock()
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
                and now - self.started_at >= FIRST_RANK_TIMEOUT_SECONDS
            )
        if self.ended_at is None:
            self.ended_at = now
        passed = now - self.ended_at
        if passed < self.settings.linger_seconds:
            return False
        undelivered = outbox.count_undelivered(self.connection, self.sinks)
        return not undelivered or passed >= UNDELIVERED_TIMEOUT_SECONDS

    def _shut_down(self) -> None:
        self.cluster_role.stop()
        self.node_poller.stop()
        if self.sample_poller is not None:
            self.sample_poller.stop()
        self.dispatcher.stop(timeout=5.0)
        self.processor.onset_worker.stop(timeout=5.0)
        self.server.stop()
        self.connection.close()
        if self.source.ended:
            self.source.remove_rings()
        self.registration.release()


def _read_incidents(path: Path) -> list[dict[str, object]]:
    connection = database.connect(path)
    try:
        return History(connection).incidents()
    finally:
        connection.close()
