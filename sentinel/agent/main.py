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

from sentinel.agent.processor import Judge
from sentinel.agent.registration import Presence
from sentinel.cluster.agent_role import Nodes
from sentinel.config.settings import Settings, build_sinks
from sentinel.live.node.node_metrics import MachineWatch, output_dir
from sentinel.live.rings import LiveSource
from sentinel.live.stale_rings import sweep
from sentinel.model.counters import Tally
from sentinel.model.record import Event, Record
from sentinel.model.record_batch import Entry
from sentinel.notify import outbox
from sentinel.notify.dispatcher import Courier
from sentinel.readers.sample_files import SampleFiles
from sentinel.readers.sample_poller import SampleWatch
from sentinel.store import database
from sentinel.store.history import History
from sentinel.store.journal import Journal
from sentinel.store.samples import newest
from sentinel.transport.paths import home, run_dir
from sentinel.transport.ring import RingReader
from sentinel.web.server import Server

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
SHARED_POLL_SECONDS = 0.2
"""Where ranks are on several nodes: what is said there comes no more often."""
SNAPSHOT_SECONDS = 30.0
"""Between two; what was read since is kept as it came, and judged again by the next agent."""
FIRST_RANK_SECONDS = 120.0
"""How long an agent waits for the first ring before it takes the start for a mistake."""
UNDELIVERED_SECONDS = 24 * 3600.0
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
        self.presence = Presence(run, directory, home() / "targets")
        self.presence.claim()
        self.stopping = Flag()
        self.born = clock()
        self.ended_at: float | None = None
        self.snapshot_at = self.born
        self.tally = Tally()
        self._open(directory / "sentinel.db")
        self._assemble(directory / "sentinel.db")
        self.judge.restore()

    def _open(self, path: Path) -> None:
        try:
            self.connection = database.connect(path)
        except sqlite3.OperationalError:
            # Locked, or no room: it is whole, and the next start may find it free.
            raise
        except sqlite3.DatabaseError:
            # Unreadable state must not stop the watch: it is set aside for a person to look at.
            aside = path.with_name(f"{path.name}.corrupt-{int(self.born)}")
            path.rename(aside)
            for rest in ("-wal", "-shm"):
                path.with_name(path.name + rest).unlink(missing_ok=True)
            log.exception("The database cannot be read; it was moved to %s", aside)
            self.tally.add("sentinel_dropped_records_total", "database_corrupt")
            self.connection = database.connect(path)

    def _assemble(self, path: Path) -> None:
        self.sinks = build_sinks(self.settings)
        known = Journal(self.connection).positions()
        self.source = LiveSource(self.run, self.tally, known, self.clock)
        self.machine = MachineWatch(
            self.settings.machine_seconds,
            self.tally,
            path.parent,
            lambda: output_dir(self.judge.history.facts.about()),
            self.source.pids,
            self.clock,
        )
        self.source.machine = self.machine.news
        self.judge = Judge(
            self.run,
            path,
            self.connection,
            self.settings,
            self.tally,
            sinks=self.sinks,
            machine=self.machine.now,
            rings=self._rings,
            clock=self.clock,
        )
        self.nodes = Nodes(
            self.run,
            self.connection,
            self.tally,
            lambda: self.source.first,
            head=self.settings.cluster.head,
            token=self.settings.cluster.secret_token(),
            clock=self.clock,
        )
        self.judge.exposition.cluster = self.nodes.state
        self.courier = Courier(path, self.sinks, self.tally, self.clock)
        self.files = self._sample_files()
        self.server = Server(
            self.judge.exposition.registry,
            self.judge.exposition.state,
            lambda: _incidents(path),
            lambda step, limit: newest(path, step, limit),
            host=self.settings.host,
            port=self.settings.port,
            port_tries=self.settings.port_tries,
            token=self.settings.secret_token(),
        )

    def _rings(self) -> list[RingReader]:
        return [rank.reader for rank in self.source.ranks.values() if not rank.ended]

    def _sample_files(self) -> SampleWatch | None:
        folder, known = self.settings.samples_from, self.judge.samples.files()
        if folder is None:
            return None
        return SampleWatch(SampleFiles(self.run, folder, self.tally, known, self.clock))

    def serve(self) -> None:
        """Work until the run is over, or until `stopping` is set."""
        port = self.server.start()
        url = self.presence.announce(self.settings.host, port)
        log.info("Serving run %s at %s/metrics", self.run, url)
        self.courier.start()
        self.machine.start()
        sweep(self.clock())
        try:
            while not self.stopping.is_set() and not self._over():
                self.turn()
                shared = self.nodes.role in ("head", "post")
                self.stopping.wait(SHARED_POLL_SECONDS if shared else POLL_SECONDS)
            self._last_turn()
            # After a turn that failed, memory holds what was never stored: that is not kept.
            with database.transaction(self.connection):
                self.judge.snapshot()
        finally:
            self._leave()

    def turn(self) -> None:
        """Read what is new, judge it, and commit both."""
        if self.judge.listen():
            self.courier.wake()
        read = self.source.poll()
        if self.files is not None and self.source.attempt >= 0:
            read += self.files.poll(self.source.attempt)
        entries = self.nodes.turn(read)
        if entries or self.nodes.due:
            self._commit(read, entries)
        self.nodes.kept()

    def _last_turn(self) -> None:
        """Tell what waits for others to speak, or to come: whoever ends us may end them as well."""
        held = self.source.conclude()
        if self.nodes.head is not None:
            self.nodes.head.final = held = True
        if held:
            self.turn()

    def _commit(self, read: list[Record], entries: list[Entry]) -> None:
        """Judge these entries, and store what came of them with how far all was read."""
        with database.transaction(self.connection):
            queued = [self.judge.feed(entry) for entry in entries]
            self.judge.keep()
            if self.nodes.role == "post":
                self.judge.glance(read)
            self.nodes.keep()
            if self.files is not None:
                self.judge.samples.mark(self.files.taken())
            if any(record.event is not Event.TICK for record in read):
                self.judge.journal.place(self.source.positions())
            if self.clock() - self.snapshot_at >= SNAPSHOT_SECONDS:
                self.snapshot_at = self.clock()
                self.judge.snapshot()
        if any(queued):
            self.courier.wake()
        if self.judge.ending is not None:
            self.presence.conclude(self.judge.ending)
            self.judge.ending = None

    def _over(self) -> bool:
        now = self.clock()
        if not (self.source.ended and self.nodes.over):
            self.ended_at = None
            return not self.source.expected and now - self.born >= FIRST_RANK_SECONDS
        if self.ended_at is None:
            self.ended_at = now
        passed = now - self.ended_at
        if passed < self.settings.linger_seconds:
            return False
        undelivered = outbox.undelivered(self.connection, self.sinks)
        return not undelivered or passed >= UNDELIVERED_SECONDS

    def _leave(self) -> None:
        self.nodes.stop()
        self.machine.stop()
        if self.files is not None:
            self.files.stop()
        self.courier.stop(timeout=5.0)
        self.judge.dating.stop(timeout=5.0)
        self.server.stop()
        self.connection.close()
        if self.source.ended:
            self.source.discard()
        self.presence.withdraw()


def _incidents(path: Path) -> list[dict[str, object]]:
    connection = database.connect(path)
    try:
        return History(connection).incidents()
    finally:
        connection.close()
