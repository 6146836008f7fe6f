"""Lane: one sink's way out of the outbox. What happens in it never holds up another lane."""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sentinel.model.counters import Tally
from sentinel.model.incident import Page
from sentinel.model.request import Sink
from sentinel.notify import notification_codec, outbox, retry
from sentinel.notify.http import DEADLINE, Answer, send, worded
from sentinel.notify.outbox import Entry

log = logging.getLogger(__name__)

FAMILY = "sentinel_sink_deliveries_total"
OUTCOMES = ("delivered", "retry", "dead")

_TOO_LONG = "too long"
_SHORT = 300


@dataclass(frozen=True, slots=True)
class Pace:
    """How a receiver is treated.

    `spacing` seconds lie between two requests, `deadline` seconds bound one, `idle` seconds is the
    longest sleep. `draw` gives random numbers in [0, 1).
    """

    spacing: float = 1.0
    deadline: float = DEADLINE
    idle: float = 1.0
    draw: Callable[[], float] = random.random


@dataclass
class Lane:
    """Takes one sink's due pages out of the outbox, one at a time."""

    name: str
    sink: Sink
    connection: sqlite3.Connection
    tally: Tally
    clock: Callable[[], float]
    pace: Pace = field(default_factory=Pace)
    _spoke: float = field(default=0.0, init=False)
    _silence: float = field(default=0.0, init=False)
    _owed: Callable[[], None] | None = field(default=None, init=False)

    def turn(self) -> float:
        """Try the one page that is due, if any; seconds until it is worth looking again.

        Raises sqlite3.Error if the outbox cannot be read or written; nothing is lost by calling
        again.
        """
        self._settle()
        now = self.clock()
        # Measured from the last request, so that a clock set back cannot silence the lane.
        if 0 <= now - self._spoke < self._silence:
            return self._spoke + self._silence - now
        entry = outbox.claim(self.connection, self.name, now)
        if entry is None:
            return self._nap(now)
        self._silence = self.pace.spacing
        self._owed = self._outcome(entry)
        self._spoke = self.clock()
        self._settle()
        return self._silence

    def _settle(self) -> None:
        # What came of a request is owed to the outbox until it is stored: forgetting it because
        # the disk was full for a moment would send the page again.
        if self._owed is not None:
            self._owed()
            self._owed = None

    def _nap(self, now: float) -> float:
        due = outbox.next_at(self.connection, self.name)
        return self.pace.idle if due is None else min(max(due - now, 0.01), self.pace.idle)

    def _outcome(self, entry: Entry) -> Callable[[], None]:
        try:
            page = notification_codec.decode(entry.text)
            if entry.last_error.startswith(_TOO_LONG):
                page = _shortened(page)
            post = worded(self.sink, page, entry.key, self.clock())
        except Exception as error:
            return self._dead(entry, type(error).__name__)
        allow_http = bool(getattr(self.sink, "allow_http", False))
        answer = send(post, deadline=self.pace.deadline, allow_http=allow_http)
        if self._accepted(answer):
            return self._delivered(entry, answer)
        return self._refused(entry, answer)

    def _accepted(self, answer: Answer) -> bool:
        try:
            return not answer.error and self.sink.accepted(answer.status, answer.body)
        except Exception as error:
            log.error("Sink %s cannot judge an answer: %s", self.name, type(error).__name__)  # noqa: TRY400
            return False

    def _delivered(self, entry: Entry, answer: Answer) -> Callable[[], None]:
        log.info("Sink %s took a page (%s, try %d)", self.name, answer, entry.tries)
        self._count("delivered")
        return lambda: outbox.delivered(self.connection, entry.key)

    def _refused(self, entry: Entry, answer: Answer) -> Callable[[], None]:
        shorter = retry.too_long(answer) and not entry.last_error.startswith(_TOO_LONG)
        if retry.hopeless(answer) and not shorter:
            return self._dead(entry, str(answer))
        now = self.clock()
        if now - entry.created >= retry.patience(entry.severity):
            return self._dead(entry, str(answer))
        return self._again(entry, answer, now, shorter=shorter)

    def _again(
        self, entry: Entry, answer: Answer, now: float, *, shorter: bool
    ) -> Callable[[], None]:
        wait = retry.wait(answer, entry.tries, self.pace.draw())
        log.warning("Sink %s did not take a page (%s); again in %.1f s", self.name, answer, wait)
        self._count("retry")
        shorter = shorter or entry.last_error.startswith(_TOO_LONG)
        error = f"{_TOO_LONG}: {answer}" if shorter else str(answer)
        asked = answer.retry_after or 0.0
        self._silence = max(self.pace.spacing, asked)

        def put_off() -> None:
            outbox.hold(self.connection, self.name, now + asked)
            outbox.retry(self.connection, entry.key, now + wait, error)

        return put_off

    def _dead(self, entry: Entry, error: str) -> Callable[[], None]:
        log.error("Sink %s will not take a page (%s); it is given up", self.name, error)
        self._count("dead")
        return lambda: outbox.dead(self.connection, entry.key, error)

    def _count(self, outcome: str) -> None:
        self.tally.add(FAMILY, f"{self.name}:{outcome}")


def _shortened(page: Page) -> Page:
    incident = page.incident
    finding = replace(incident.finding, summary=incident.finding.summary[:_SHORT], evidence={})
    brief = replace(incident, finding=finding, remedy=incident.remedy[:_SHORT])
    return replace(page, incident=brief)
