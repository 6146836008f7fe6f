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
from math import isfinite
from pathlib import Path
from threading import Event as Flag

from sentinel.engine import Verdict
from sentinel.fold import SET_ASIDE, Fold
from sentinel.hardware import MEASURED
from sentinel.incident import Tier
from sentinel.onset import dated
from sentinel.outlets import database, outbox
from sentinel.outlets.courier import Courier
from sentinel.outlets.dating import Dating
from sentinel.outlets.exposition import Exposition
from sentinel.outlets.history import History
from sentinel.outlets.journal import Journal
from sentinel.outlets.presence import Presence
from sentinel.outlets.requesting import Requesting
from sentinel.outlets.samples import Samples, newest
from sentinel.outlets.telling import Telling
from sentinel.record import WHOLE_RUN, Event, Record
from sentinel.settings import Settings, build_causes, build_detectors, build_sinks
from sentinel.signals import canonical
from sentinel.sources.leftovers import sweep
from sentinel.sources.live import LiveSource
from sentinel.sources.machine import MachineWatch, output_dir
from sentinel.sources.sample_watch import SampleWatch
from sentinel.sources.samples import SampleFiles
from sentinel.tally import Tally
from sentinel.web.server import Server
from sentinel.wire.places import home, run_dir
from sentinel.wire.ring import RingReader

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
SNAPSHOT_SECONDS = 10.0
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
        self.ending: Record | None = None
        self.snapshot_at = self.born
        self.tally = Tally()
        self._open(directory / "sentinel.db")
        self._assemble(directory / "sentinel.db")
        self._restore()

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
        self.journal = Journal(self.connection)

    def _assemble(self, path: Path) -> None:
        makers = build_detectors(self.settings)
        self.sinks = build_sinks(self.settings)
        self.fold = Fold(makers, self.tally, build_causes())
        self.history = History(self.connection)
        self.source = LiveSource(self.run, self.tally, self.journal.positions(), self.clock)
        self.machine = MachineWatch(
            self.settings.machine_seconds,
            self.tally,
            path.parent,
            lambda: output_dir(self.history.facts.about()),
            self.source.pids,
            self.clock,
        )
        self.source.machine = self.machine.news
        self.exposition = Exposition(
            self.tally,
            {name: make().severity for name, make in makers.items()},
            self.settings.per_rank_limit,
            self.run,
            self.machine.now,
        )
        self.courier = Courier(path, self.sinks, self.tally, self.clock)
        tier = Tier(self.settings.tier)
        self.telling = Telling(self.connection, self.sinks, tier, self.clock)
        self.samples = Samples(self.connection, self.settings.samples_kept)
        self.files = self._sample_files()
        self.dating = Dating(path, dated, self.exposition.date)
        self.requesting = Requesting(
            self.connection, self.settings.on_critical(), self._rings, lambda: self.telling.quiet
        )
        self.heeding = (self.exposition, self.telling, self.requesting)
        self.outlets = (self.history, *self.heeding, self.samples, self.dating)
        self.server = Server(
            self.exposition.registry,
            self.exposition.state,
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
        folder, known = self.settings.samples_from, self.samples.files()
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
                self.stopping.wait(POLL_SECONDS)
            # After a turn that failed, memory holds what was never stored: that is not kept.
            with database.transaction(self.connection):
                self._snapshot()
        finally:
            self._leave()

    def turn(self) -> None:
        """Read what is new, judge it, and commit both."""
        self._listen()
        self.requesting.turn()
        records = self.source.poll()
        if self.files is not None and self.source.attempt >= 0:
            records += self.files.poll(self.source.attempt)
        if not records:
            return
        with database.transaction(self.connection):
            queued = [self._feed(record) for record in records]
            if self.files is not None:
                self.samples.mark(self.files.taken())
            if any(record.event is not Event.TICK for record in records):
                self.journal.place(self.source.positions())
            if self.clock() - self.snapshot_at >= SNAPSHOT_SECONDS:
                self._snapshot()
        if any(queued):
            self.courier.wake()
        if self.ending is not None:
            self.presence.conclude(self.ending)
            self.ending = None

    def _listen(self) -> None:
        """Take up what people want to be told of, and tell what waited for that."""
        if self.telling.look():
            self.exposition.hush(self.telling.quiet)
        if due := self.telling.due(self.fold.standing):
            with database.transaction(self.connection):
                self.telling.pay(due)
            self.courier.wake()

    def _feed(self, record: Record) -> bool:
        """One input record through the whole house; whether a page was queued because of it."""
        self._count(record)
        verdicts = list(self.fold.feed(record))
        for verdict in verdicts:
            self._show(verdict)
            if verdict.record.rank == WHOLE_RUN and verdict.record.event is Event.STOP:
                self.ending = verdict.record
        moved = any(verdict.pages or verdict.moved for verdict in verdicts)
        told = (page for verdict in verdicts for page in verdict.told)
        queued = self.telling.post(map(self.requesting.noted, told))
        # A tick that changed nothing need not be remembered.
        if record.event is not Event.TICK or moved or len(verdicts) > 1 or _measured(record):
            self.journal.append(record)
        return queued

    def _show(self, verdict: Verdict) -> None:
        for outlet in self.outlets:
            try:
                outlet.take(verdict)
            except sqlite3.Error:
                # Nothing of this turn is kept then, and all of it is read again.
                raise
            except SET_ASIDE:
                log.exception("A verdict cannot be shown: it is left aside")
                self.tally.add("sentinel_dropped_records_total", "unshown")

    def _count(self, record: Record) -> None:
        if record.rank == WHOLE_RUN:
            for name, errors in self.fold.engine.errors.items():
                self.tally.set("sentinel_detector_errors_total", name, errors)
            return
        if record.event not in (Event.STEP, Event.EVAL):
            # A setting may be infinite, and a reward that does not apply to a text is no number.
            return
        for name, value in record.values.items():
            if not isfinite(value):
                self.tally.add("sentinel_nonfinite_total", canonical(name))

    def _snapshot(self) -> None:
        self.snapshot_at = self.clock()
        state = self.fold.freeze()
        if state is not None:
            self.journal.snapshot(state)

    def _restore(self) -> None:
        state = self.journal.state()
        if state is not None and not self.fold.restore(state):
            self.fold.engine.book.episodes = self.history.episodes()
        for record in self.journal.since_snapshot():
            # Its consequences were stored with it; only the memory of it is built again.
            for _ in self.fold.feed(record):
                pass
        for record in self.history.last(self.run):
            for outlet in self.heeding:
                outlet.take(Verdict(record))
            # An agent killed just then may not have come to write it.
            self.ending = record if record.event is Event.STOP else None
        for record in self.history.facts.last(self.run):
            self.exposition.take(Verdict(record))
        self.exposition.resume(self.fold.firing(), self.fold.standing())
        self.dating.resume(self.fold.firing())

    def _over(self) -> bool:
        now = self.clock()
        if not self.source.ended:
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
        self.machine.stop()
        if self.files is not None:
            self.files.stop()
        self.courier.stop(timeout=5.0)
        self.dating.stop(timeout=5.0)
        self.server.stop()
        self.connection.close()
        if self.source.ended:
            self.source.discard()
        self.presence.withdraw()


def _measured(record: Record) -> bool:
    return not MEASURED.isdisjoint(record.values)


def _incidents(path: Path) -> list[dict[str, object]]:
    connection = database.connect(path)
    try:
        return History(connection).incidents()
    finally:
        connection.close()
