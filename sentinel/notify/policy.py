"""Telling: which pages go to people now, and which wait until people want to hear of them.

A page that is withheld is owed: once nothing keeps it back any more, and its incident still fires,
it is queued, once. What calmed down meanwhile is never told. What is owed commits together with the
cause of the page, so that an agent that takes over owes the same.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace

from sentinel.model.finding import Severity
from sentinel.model.incident import Page, Reason, State, Tier
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.notify import notification_codec, outbox
from sentinel.pipeline.engine import Verdict
from sentinel.store import silences
from sentinel.store.silences import Ack, Quiet

log = logging.getLogger(__name__)

TOLD = "monitor/tier"
"""The fact by which a run says what `sentinel.monitor` was given; it hides the setting."""


class Telling:
    """Queues pages for `sinks`, as far as the run's tier, silences and acknowledgements allow.

    `clock` tells seconds since the epoch. `post` and `pay` want the caller's transaction.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        sinks: Collection[str],
        tier: Tier,
        clock: Callable[[], float],
    ) -> None:
        self.connection = connection
        self.sinks = sinks
        self.clock = clock
        self.quiet = Quiet(tier)
        self.history = False
        """Whether what is posted was over before anybody watched: it is all withheld."""
        self.owed = _owed(connection)
        self._version = -1

    def look(self) -> bool:
        """Take up what people entered, and what ended by itself; whether there is news.

        At the first look there is: what the settings say.

        Where nobody wrote into the database this costs a few microseconds.
        """
        before, now, first = self.quiet, self.clock(), self._version < 0
        (version,) = self.connection.execute("pragma data_version").fetchone()
        if version != self._version:
            self._version = version
            found = silences.lasting(self.connection, now), silences.acks(self.connection)
            self.quiet = Quiet(before.tier, *found)
        self.quiet = self.quiet.at(now)
        return first or self.quiet != before

    def take(self, verdict: Verdict) -> None:
        """Heed the tier that the run was begun with, if it was given one."""
        record = verdict.record
        if record.event is Event.START and record.rank == WHOLE_RUN and TOLD in record.facts:
            with suppress(ValueError):
                self.quiet = replace(self.quiet, tier=Tier(record.facts[TOLD]))
                # The next look is as good as the first.
                self._version = -1

    def post(self, pages: Iterable[Page]) -> bool:
        """Queue each page, or owe it, or leave it; whether any was queued."""
        queued = [self._post(page) for page in pages]
        return any(queued)

    def due(self, standing: Callable[[], Iterable[Page]]) -> list[Page]:
        """What is owed of cases that still stand, and nothing keeps back any more."""
        if not self.owed or self.history or self.quiet.tier is Tier.QUIET:
            return []
        now = {page.incident.name: page for page in standing()}
        told = (_late(page, now[name]) for name, page in self.owed.items() if name in now)
        return [page for page in told if _fires(page) and not self._kept_back(page)]

    def pay(self, pages: Iterable[Page]) -> None:
        """Queue what was due."""
        for page in pages:
            self._forget(page)
            self._queue(page)

    def _post(self, page: Page) -> bool:
        incident = page.incident
        if incident.severity is Severity.INFO:
            return False
        waiting = self.owed.get(incident.name)
        hushed = self.history or self._hushes(page)
        if page.reason is Reason.RESOLVED:
            self._forget(page)
            # Whoever was never told of it need not hear that it is over.
            return not hushed and waiting is None and self._queue(page)
        if waiting is not None:
            page = replace(page, reason=waiting.reason)
        elif page.reason is Reason.UPDATED or (hushed and page.reason is Reason.NAMED):
            return False
        if hushed:
            return self._owe(page)
        if self.quiet.in_hand(page.incidents):
            return False
        self._forget(page)
        return self._queue(page)

    def _kept_back(self, page: Page) -> bool:
        return self._hushes(page) or self.quiet.in_hand(page.incidents)

    def _hushes(self, page: Page) -> bool:
        """Whether nobody is to be told of any incident of the page."""
        return all(self.quiet.hushes(each.key.detector) for each in page.incidents)

    def _queue(self, page: Page) -> bool:
        told = self._softened(page)
        acks = (self.quiet.acks.get(each.name) for each in page.incidents)
        known = next((ack for ack in acks if ack is not None), None)
        if known is not None:
            told = replace(told, notes=(*told.notes, _acknowledged(known)))
        outbox.enqueue(self.connection, told, self.sinks, self.clock())
        return True

    def _softened(self, page: Page) -> Page:
        severity = self.quiet.severity(page.incident.severity)
        if severity is page.incident.severity:
            return page
        note = f"It is {page.incident.severity.value}; the run's tier {self.quiet.tier.value!r}"
        incident = replace(page.incident, severity=severity)
        return replace(page, incident=incident, notes=(*page.notes, f"{note} wakes nobody."))

    def _owe(self, page: Page) -> bool:
        self.owed[page.incident.name] = page
        self.connection.execute(
            "insert or replace into owed(incident, page) values(?, ?)",
            (page.incident.name, notification_codec.encode(page)),
        )
        return False

    def _forget(self, page: Page) -> None:
        if self.owed.pop(page.incident.name, None) is not None:
            self.connection.execute("delete from owed where incident = ?", [page.incident.name])


def _fires(page: Page) -> bool:
    return any(each.state is State.FIRING for each in page.incidents)


def _late(owed: Page, now: Page) -> Page:
    note = f"Withheld at step {owed.step}, and told now that nothing keeps it back."
    return replace(now, reason=owed.reason, step=owed.step, time=owed.time, notes=(note,))


def _acknowledged(ack: Ack) -> str:
    return silences.signed(f"Acknowledged at {silences.moment(ack.time)}", ack.by, ack.why)


def _owed(connection: sqlite3.Connection) -> dict[str, Page]:
    owed = {}
    for name, text in connection.execute("select incident, page from owed order by rowid"):
        try:
            owed[name] = notification_codec.decode(text)
        except notification_codec.UnreadablePageError:
            log.exception("A page that is owed cannot be read")
    return owed
