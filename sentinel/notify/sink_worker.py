"""Lane: one sink's way out of the outbox. What happens in it never holds up another lane."""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sentinel.model.counters import Counters
from sentinel.model.notification import Notification
from sentinel.model.request import Sink
from sentinel.notify import notification_codec, outbox, retry
from sentinel.notify.http import REQUEST_DEADLINE_SECONDS, HttpResponse, render_request, send
from sentinel.notify.outbox import OutboxEntry

log = logging.getLogger(__name__)

DELIVERIES_METRIC = "sentinel_sink_deliveries_total"
DELIVERY_OUTCOMES = ("delivered", "retry", "dead")

_TOO_LONG_PREFIX = "too long"
_SHORTENED_CHARS = 300


@dataclass(frozen=True, slots=True)
class DeliveryTiming:
    """How a receiver is treated.

    `spacing` seconds lie between two requests, `deadline` seconds bound one, `idle` seconds is the
    longest sleep. `draw` gives random numbers in [0, 1).
    """

    min_interval_seconds: float = 1.0
    deadline_seconds: float = REQUEST_DEADLINE_SECONDS
    max_sleep_seconds: float = 1.0
    uniform_random: Callable[[], float] = random.random


@dataclass
class SinkWorker:
    """Takes one sink's due pages out of the outbox, one at a time."""

    name: str
    sink: Sink
    connection: sqlite3.Connection
    counters: Counters
    clock: Callable[[], float]
    timing: DeliveryTiming = field(default_factory=DeliveryTiming)
    _last_request_time: float = field(default=0.0, init=False)
    _wait_seconds: float = field(default=0.0, init=False)
    _store_outcome: Callable[[], None] | None = field(default=None, init=False)

    def deliver_next(self) -> float:
        """Try the one page that is due, if any; seconds until it is worth looking again.

        Raises sqlite3.Error if the outbox cannot be read or written; nothing is lost by calling
        again.
        """
        self._store_pending_outcome()
        now = self.clock()
        # Measured from the last request, so that a clock set back cannot silence the lane.
        if 0 <= now - self._last_request_time < self._wait_seconds:
            return self._last_request_time + self._wait_seconds - now
        entry = outbox.claim(self.connection, self.name, now)
        if entry is None:
            return self._seconds_until_due(now)
        self._wait_seconds = self.timing.min_interval_seconds
        self._store_outcome = self._deliver(entry)
        self._last_request_time = self.clock()
        self._store_pending_outcome()
        return self._wait_seconds

    def _store_pending_outcome(self) -> None:
        # What came of a request is owed to the outbox until it is stored: forgetting it because
        # the disk was full for a moment would send the page again.
        if self._store_outcome is not None:
            self._store_outcome()
            self._store_outcome = None

    def _seconds_until_due(self, now: float) -> float:
        due = outbox.next_attempt_time(self.connection, self.name)
        return (
            self.timing.max_sleep_seconds
            if due is None
            else min(max(due - now, 0.01), self.timing.max_sleep_seconds)
        )

    def _deliver(self, entry: OutboxEntry) -> Callable[[], None]:
        try:
            page = notification_codec.decode(entry.notification_json)
            if entry.last_error.startswith(_TOO_LONG_PREFIX):
                page = _shorten(page)
            post = render_request(self.sink, page, entry.key, self.clock())
        except Exception as error:
            return self._handle_dead(entry, type(error).__name__)
        allow_http = bool(getattr(self.sink, "allow_http", False))
        answer = send(post, deadline=self.timing.deadline_seconds, allow_http=allow_http)
        if self._is_accepted(answer):
            return self._handle_delivered(entry, answer)
        return self._handle_failure(entry, answer)

    def _is_accepted(self, response: HttpResponse) -> bool:
        try:
            return not response.error and self.sink.is_accepted(response.status, response.body)
        except Exception as error:
            log.error("Sink %s cannot judge an answer: %s", self.name, type(error).__name__)  # noqa: TRY400
            return False

    def _handle_delivered(self, entry: OutboxEntry, response: HttpResponse) -> Callable[[], None]:
        log.info("Sink %s took a page (%s, try %d)", self.name, response, entry.tries)
        self._count("delivered")
        return lambda: outbox.mark_delivered(self.connection, entry.key)

    def _handle_failure(self, entry: OutboxEntry, response: HttpResponse) -> Callable[[], None]:
        shorter = retry.is_payload_too_long(response) and not entry.last_error.startswith(
            _TOO_LONG_PREFIX
        )
        if retry.is_permanent_failure(response) and not shorter:
            return self._handle_dead(entry, str(response))
        now = self.clock()
        if now - entry.created >= retry.max_age_seconds(entry.severity):
            return self._handle_dead(entry, str(response))
        return self._handle_retry(entry, response, now, shorten=shorter)

    def _handle_retry(
        self, entry: OutboxEntry, response: HttpResponse, now: float, *, shorten: bool
    ) -> Callable[[], None]:
        wait = retry.retry_delay_seconds(response, entry.tries, self.timing.uniform_random())
        log.warning("Sink %s did not take a page (%s); again in %.1f s", self.name, response, wait)
        self._count("retry")
        shorten = shorten or entry.last_error.startswith(_TOO_LONG_PREFIX)
        error = f"{_TOO_LONG_PREFIX}: {response}" if shorten else str(response)
        asked = response.retry_after or 0.0
        self._wait_seconds = max(self.timing.min_interval_seconds, asked)

        def put_off() -> None:
            outbox.postpone_sink(self.connection, self.name, now + asked)
            outbox.reschedule(self.connection, entry.key, now + wait, error)

        return put_off

    def _handle_dead(self, entry: OutboxEntry, error: str) -> Callable[[], None]:
        log.error("Sink %s will not take a page (%s); it is given up", self.name, error)
        self._count("dead")
        return lambda: outbox.mark_dead(self.connection, entry.key, error)

    def _count(self, outcome: str) -> None:
        self.counters.add(DELIVERIES_METRIC, f"{self.name}:{outcome}")


def _shorten(notification: Notification) -> Notification:
    incident = notification.incident
    finding = replace(
        incident.finding, summary=incident.finding.summary[:_SHORTENED_CHARS], evidence={}
    )
    brief = replace(incident, finding=finding, remedy=incident.remedy[:_SHORTENED_CHARS])
    return replace(notification, incident=brief)
