"""Judge: all that becomes of a record once it was read: verdicts, what is shown, and who is told.

Whatever a record leads to is stored in the transaction of its caller. A judge that takes over from
one that was killed restores the last snapshot and feeds itself the journal behind it.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterable
from math import isfinite
from pathlib import Path
from typing import Protocol

from sentinel.actions.planner import Requesting
from sentinel.config.settings import Settings, build_causes, build_detectors
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Tally
from sentinel.model.hardware import MEASURED, Machine
from sentinel.model.incident import Tier
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import Entry, Sheet
from sentinel.model.request import Sink
from sentinel.notify.policy import Telling
from sentinel.pipeline.engine import Verdict
from sentinel.pipeline.onset import dated
from sentinel.pipeline.pipeline import SET_ASIDE, Fold
from sentinel.signals.catalogue import canonical
from sentinel.store import database
from sentinel.store.history import History
from sentinel.store.journal import Journal
from sentinel.store.onset_worker import Dating
from sentinel.store.samples import Samples
from sentinel.transport.ring import RingReader

log = logging.getLogger(__name__)


class Outlet(Protocol):
    """Whatever is to know of verdicts."""

    def take(self, verdict: Verdict) -> None:
        """Take one in; never waits."""


class Judge:
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
        tally: Tally,
        *,
        sinks: dict[str, Sink],
        machine: Callable[[], Machine],
        rings: Callable[[], list[RingReader]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run, self.connection, self.tally = run, connection, tally
        makers = build_detectors(settings)
        self.fold = Fold(makers, tally, build_causes())
        self.journal = Journal(connection)
        self.history = History(connection)
        severities = {name: make().severity for name, make in makers.items()}
        self.exposition = Exposition(tally, severities, settings.per_rank_limit, run, machine)
        self.telling = Telling(connection, sinks, Tier(settings.tier), clock)
        self.samples = Samples(connection, settings.samples_kept)
        self.dating = Dating(path, dated, self.exposition.date)
        self.requesting = Requesting(
            connection, settings.on_critical(), rings, lambda: self.telling.quiet
        )
        self.heeding = (self.exposition, self.telling, self.requesting)
        self.outlets: tuple[Outlet, ...] = (self.history, *self.heeding, self.samples, self.dating)
        self._input: list[Entry] = []
        self.ending: Record | None = None
        """How the run ended, until somebody has taken note."""

    def listen(self) -> bool:
        """Take up what people want to be told of; whether anything was told that waited for it."""
        if self.telling.look():
            self.exposition.hush(self.telling.quiet)
        due = self.telling.due(self.fold.standing)
        if due:
            with database.transaction(self.connection):
                self.telling.pay(due)
        self.requesting.turn()
        return bool(due)

    def feed(self, entry: Entry) -> bool:
        """What was read through the whole house; whether a page was queued because of it."""
        self._count(entry)
        if isinstance(entry, Sheet):
            self.exposition.read(entry)
        verdicts = [*self.fold.feed(entry)]
        for verdict in verdicts:
            self._show(verdict)
            if verdict.record.rank == WHOLE_RUN and verdict.record.event is Event.STOP:
                self.ending = verdict.record
        moved = any(verdict.pages or verdict.moved for verdict in verdicts)
        told = [page for verdict in verdicts for page in verdict.told]
        queued = bool(told) and self.telling.post(map(self.requesting.noted, told))
        if moved or len(verdicts) > 1 or not _forgettable(entry):
            self._input.append(entry)
        return queued

    def keep(self) -> None:
        """Store what was fed since the last time."""
        self.journal.keep(self._input)
        self._input = []

    def glance(self, records: Iterable[Record]) -> None:
        """Show how the ranks of this node are, though they are judged elsewhere."""
        for record in records:
            self.exposition.take(Verdict(record))

    def snapshot(self) -> None:
        """Store the memory of everything so far; the journal behind it is no longer needed."""
        state = self.fold.freeze()
        if state is not None:
            self.journal.snapshot(state)

    def restore(self) -> None:
        """Go on where the last one was when it was killed."""
        state = self.journal.state()
        if state is not None and not self.fold.restore(state):
            self.fold.engine.book.episodes = self.history.episodes()
        for entry in self.journal.since_snapshot(self.run):
            # Its consequences were stored with it; only the memory of it is built again.
            for _ in self.fold.feed(entry):
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

    def _show(self, verdict: Verdict) -> None:
        record = verdict.record
        # What one rank says of a step concerns only whoever shows how the ranks are.
        plain = record.rank != WHOLE_RUN and record.event is Event.STEP
        for outlet in (self.exposition,) if plain else self.outlets:
            try:
                outlet.take(verdict)
            except sqlite3.Error:
                # Nothing of this turn is kept then, and all of it is read again.
                raise
            except SET_ASIDE:
                log.exception("A verdict cannot be shown: it is left aside")
                self.tally.add("sentinel_dropped_records_total", "unshown")

    def _count(self, entry: Entry) -> None:
        if isinstance(entry, Sheet):
            # Of numbers that are all finite the sum may not be: then they are looked at.
            if not isfinite(sum(map(sum, entry.rows))):
                for record in entry.records():
                    self._count(record)
        elif entry.rank == WHOLE_RUN:
            for name, errors in self.fold.engine.errors.items():
                self.tally.set("sentinel_detector_errors_total", name, errors)
        # A setting may be infinite, and a reward that does not apply to a text is no number.
        elif entry.event in (Event.STEP, Event.EVAL) and not isfinite(sum(entry.values.values())):
            for name, value in entry.values.items():
                if not isfinite(value):
                    self.tally.add("sentinel_nonfinite_total", canonical(name))


def _forgettable(entry: Entry) -> bool:
    """Whether it is a tick that tells of no machine: one that changed nothing is not kept."""
    if isinstance(entry, Sheet) or entry.event is not Event.TICK:
        return False
    return MEASURED.isdisjoint(entry.values)
