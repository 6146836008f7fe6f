"""Delivers the notifications of one sink from the outbox. Workers do not delay each other."""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from sentinel.model.counters import Counters
from sentinel.model.delivery import (
    Delivery,
    ExplainingSink,
    HttpRequest,
    RefreshedSink,
    RejectingSink,
    Rejection,
    Response,
    SignedSink,
    Sink,
    is_record,
)
from sentinel.model.notification import Notification, NotificationReason
from sentinel.notify import digest, outbox, retry
from sentinel.notify.outbox import OutboxEntry
from sentinel.notify.recipients import Recipients
from sentinel.notify.transports.errors import PostponedError
from sentinel.notify.transports.send import send
from sentinel.store import notification_codec
from sentinel.store.database import transaction
from sentinel.store.storage_monitor import DamagedContentError, is_json

log = logging.getLogger(__name__)

DELIVERIES_METRIC = "sentinel_sink_deliveries_total"
DELIVERY_OUTCOMES = ("delivered", "retry", "dead")

MIN_CLOCK_JUMP_SECONDS = 5.0
"""How far the clock is set at least before the times of the outbox follow it."""

POSTPONED_SECONDS = 1.0
"""Delay of a notification that is not wanted at present."""

_CHECKPOINT_WAIT_MS, _BUSY_WAIT_MS = 50, 10_000
"""The agent's loop cannot write while a checkpoint waits for readers."""
_TOO_LONG_PREFIX = "too long"
_SHORTENED_CHARS = 300


@dataclass(frozen=True, slots=True)
class DeliveryTiming:
    """Intervals and limits of the deliveries to one receiver.

    Without `deadline_seconds`, each transport has its own. `max_sleep_seconds` is the longest sleep
    between two polls of the outbox. `uniform_random` returns random numbers in [0, 1). Without
    `max_per_hour` the number of messages is not limited.
    """

    min_interval_seconds: float = 1.0
    deadline_seconds: float | None = None
    max_sleep_seconds: float = 1.0
    uniform_random: Callable[[], float] = random.random
    max_per_hour: int | None = None


def render(
    sink: Sink, notification: Notification, delivery_id: str, receipt: str | None, now: float
) -> Delivery:
    """The notification as a delivery of `sink`, signed at `now` (epoch seconds) if it signs."""
    delivery = sink.render(notification, delivery_id, receipt)
    if isinstance(sink, SignedSink) and isinstance(delivery, HttpRequest):
        return sink.sign(delivery, now)
    return delivery


def is_accepted(sink: Sink, response: Response) -> bool:
    """Whether the receiver accepted a delivery; an error of the sink is logged and means no."""
    try:
        return not response.error and sink.is_accepted(response)
    except Exception as error:
        log.error("Sink %s failed to check a response: %s", type(sink).__name__, _name(error))  # noqa: TRY400
        return False


def rejection(sink: Sink, response: Response) -> Rejection:
    """Why the receiver did not accept a delivery, according to the sink or else the status."""
    stated: Rejection | None = None
    if isinstance(sink, RejectingSink):
        try:
            stated = sink.rejection(response)
        except Exception as error:
            log.error("Sink %s failed to check a response: %s", type(sink).__name__, _name(error))  # noqa: TRY400
    return stated or retry.rejection(response)


def _name(error: Exception) -> str:
    # A message can contain a secret.
    return type(error).__name__


@dataclass
class SinkWorker:
    """Takes the due notifications of one sink from the outbox, one at a time.

    `monotonic` returns seconds of a clock that is never set; without it, `clock` is such a one.
    `recipients` are all sinks in the order of the settings: what this one rejects is passed on.
    `is_wanted` returns whether a notification may be sent now; it is called once the receiver is
    reached, in a thread of its own, and again later if not. `on_resolved` gets the name of the
    sink, the end of a case that the receiver accepted, and its receipt; it must not block.
    `on_accepted` gets the key, sink, incident and reason of what the receiver accepted, before that
    is stored.
    """

    name: str
    sink: Sink
    connection: sqlite3.Connection
    counters: Counters
    clock: Callable[[], float]
    timing: DeliveryTiming = field(default_factory=DeliveryTiming)
    recipients: Recipients = field(default_factory=lambda: Recipients({}))
    on_fail_over: Callable[[], None] = lambda: None
    is_wanted: Callable[[Notification], bool] = lambda _: True
    on_resolved: Callable[[str, Notification, str | None], None] = lambda *_: None
    on_accepted: Callable[[str, str, str, str], None] = lambda *_: None
    monotonic: Callable[[], float] | None = None
    _last_request_time: float = field(default=0.0, init=False)
    _wait_seconds: float = field(default=0.0, init=False)
    _store_outcome: Callable[[], None] | None = field(default=None, init=False)
    _entry: OutboxEntry | None = field(default=None, init=False)
    _sent_times: dict[str, float] = field(default_factory=dict, init=False)
    _clock_offset: float | None = field(default=None, init=False)

    def deliver_next(self) -> float:
        """Try the next due notification, if any; return the seconds until the next call.

        Raises sqlite3.Error if the outbox cannot be read or written; a repeated call continues
        without loss.
        """
        self.store_pending_outcome()
        self._follow_clock()
        now = self.clock()
        # Relative to the last request, so that a clock set back does not stop the worker.
        if 0 <= now - self._last_request_time < self._wait_seconds:
            return self._last_request_time + self._wait_seconds - now
        entry = outbox.claim(self.connection, self.name, now)
        if entry is None:
            return self._refresh(now) or self._seconds_until_due(now)
        self._entry = entry
        # If the limit cannot be checked, the notification is queued again.
        self._store_outcome = lambda: outbox.reschedule(
            self.connection, entry.key, now, entry.last_error
        )
        is_over_limit = self._is_over_limit(entry, now)
        self._store_outcome = None
        if is_over_limit:
            return 0.0
        self._wait_seconds = self.timing.min_interval_seconds
        self._store_outcome = self._deliver(entry)
        self._last_request_time = self.clock()
        self.store_pending_outcome()
        self._checkpoint()
        return self._wait_seconds

    def _follow_clock(self) -> None:
        """Shift the times of the outbox by as much as the clock was set.

        A clock that is set forward makes no notification old, and one that is set back delays none.
        The same holds for a machine that was suspended.
        """
        jump = self._clock_jump()
        if abs(jump) >= MIN_CLOCK_JUMP_SECONDS:
            outbox.shift_times(self.connection, self.name, jump)
            self._clock_offset = (self._clock_offset or 0.0) + jump

    def _clock_jump(self) -> float:
        """Seconds by which the clock was set forward since the outbox followed it; less than 0 for
        back.
        """
        offset = 0.0 if self.monotonic is None else self.clock() - self.monotonic()
        if self._clock_offset is None:
            self._clock_offset = offset
        return offset - self._clock_offset

    def _checkpoint(self) -> None:
        """Empty the write-ahead log, so that neither its damage nor a power failure repeats a
        delivery. While the database is in use, that is left to the next delivery.
        """
        self.connection.execute(f"pragma busy_timeout={_CHECKPOINT_WAIT_MS}").fetchall()
        try:
            self.connection.execute("pragma wal_checkpoint(truncate)").fetchall()
        finally:
            self.connection.execute(f"pragma busy_timeout={_BUSY_WAIT_MS}").fetchall()

    def _refresh(self, now: float) -> float:
        """Send one firing case again if it is due; return the seconds until the next request."""
        if not isinstance(self.sink, RefreshedSink):
            return 0.0
        for key in outbox.firing_keys(self.connection, self.name):
            if abs(now - self._sent_times.get(key, 0.0)) >= self.sink.refresh_seconds:
                # A failure is repaired by the next refresh, so that nothing is stored.
                self._sent_times[key] = now
                entry = outbox.delivered_entry(self.connection, key)
                if digest.is_digest(entry.incident):
                    # Nothing ends it: its receiver ends the alert in time.
                    continue
                self._last_request_time, self._wait_seconds = now, self.timing.min_interval_seconds
                with suppress(Exception):
                    self._send(entry, notification_codec.decode(entry.notification_json))
                return self._wait_seconds
        return 0.0

    def _is_over_limit(self, entry: OutboxEntry, now: float) -> bool:
        limit = self.timing.max_per_hour
        if limit is None:
            return False
        try:
            return digest.limit_rate(
                self.connection,
                self.name,
                entry,
                limit=limit,
                can_update=self.sink.can_update,
                now=now,
            )
        except notification_codec.UnreadableNotificationError:
            return False

    def store_pending_outcome(self) -> None:
        """Store the outcome of the last delivery, if that failed before.

        It stays in memory until it is stored: losing it, for example because the disk is full,
        would send the notification again.
        """
        if self._store_outcome is not None and self._entry is not None:
            # Before the outcome, whose times are those of the clock as it is now.
            self._follow_clock()
            with transaction(self.connection, mode="immediate"):
                outbox.insert_missing(self.connection, self.name, self._entry)
                self._store_outcome()
            self._store_outcome = None

    def _seconds_until_due(self, now: float) -> float:
        due_time = outbox.next_attempt_time(self.connection, self.name, now)
        if due_time is None:
            return self.timing.max_sleep_seconds
        return min(max(due_time - now, 0.01), self.timing.max_sleep_seconds)

    def _deliver(self, entry: OutboxEntry) -> Callable[[], None]:
        try:
            notification = notification_codec.decode(entry.notification_json)
            response = self._send(entry, notification)
        except notification_codec.UnreadableNotificationError as error:
            if is_json(entry.notification_json):
                return self._handle_dead(entry, type(error).__name__)
            self._store_outcome = self._handle_postponed(entry)
            raise DamagedContentError("a queued notification is no JSON") from None
        except Exception as error:
            return self._handle_dead(entry, type(error).__name__)
        if response.error == PostponedError.__name__:
            return self._handle_postponed(entry)
        if is_accepted(self.sink, response):
            return self._handle_delivered(entry, notification, response)
        return self._handle_failure(entry, response)

    def _send(self, entry: OutboxEntry, notification: Notification) -> Response:
        """Render and send once. Raises what the sink raises."""
        if entry.last_error.startswith(_TOO_LONG_PREFIX):
            notification = _shorten(notification)
        delivery = render(self.sink, notification, entry.key, entry.receipt, self.clock())
        response = send(
            delivery,
            deadline=self.timing.deadline_seconds,
            is_wanted=lambda: self.is_wanted(notification),
        )
        follow_up = delivery.follow_up if isinstance(delivery, HttpRequest) else None
        if follow_up is not None and is_accepted(self.sink, response):
            send(follow_up, deadline=self.timing.deadline_seconds)
        return response

    def _handle_postponed(self, entry: OutboxEntry) -> Callable[[], None]:
        next_at = self.clock() + POSTPONED_SECONDS
        return lambda: outbox.reschedule(self.connection, entry.key, next_at, entry.last_error)

    def _handle_delivered(
        self, entry: OutboxEntry, notification: Notification, response: Response
    ) -> Callable[[], None]:
        log.info("Sink %s accepted a notification (%s, try %d)", self.name, response, entry.tries)
        self._count("delivered")
        receipt, now = self._receipt(response), self.clock()
        self._sent_times[entry.key] = now

        def store_delivered() -> None:
            outbox.mark_delivered(self.connection, entry.key, now, receipt)

        self.on_accepted(entry.key, self.name, entry.incident, entry.reason)
        # Before anything is read: an error must not lose that the receiver has the notification.
        self._store_outcome = store_delivered
        # The end of the run can be a part of the first message.
        is_last = notification.incident.is_ended_firing or notification.reason in (
            NotificationReason.ENDED,
            NotificationReason.RESOLVED,
        )
        if is_last and not outbox.has_ended(self.connection, self.name, entry.incident):
            with suppress(Exception):
                self.on_resolved(self.name, notification, receipt or entry.receipt)
        return store_delivered

    def _receipt(self, response: Response) -> str | None:
        try:
            return self.sink.receipt(response)
        except Exception as error:
            log.error("Sink %s failed to read a receipt: %s", self.name, _name(error))  # noqa: TRY400
            return None

    def _handle_failure(self, entry: OutboxEntry, response: Response) -> Callable[[], None]:
        reason = rejection(self.sink, response)
        now, is_shortened = self.clock(), entry.last_error.startswith(_TOO_LONG_PREFIX)
        if reason is Rejection.UNKNOWN_RECEIPT and entry.receipt is not None:
            return self._handle_unknown_receipt(entry, response, now)
        shorten = reason is Rejection.TOO_LONG and not is_shortened
        is_rejected = reason is not Rejection.TEMPORARY and not shorten
        age = now - entry.created - self._clock_jump()
        if is_rejected or age >= retry.max_age_seconds(entry.severity):
            return self._handle_dead(entry, self._describe(response))
        return self._handle_retry(entry, response, now, shorten=shorten)

    def _handle_unknown_receipt(
        self, entry: OutboxEntry, response: Response, now: float
    ) -> Callable[[], None]:
        log.warning("Sink %s has no earlier message of a case any more (%s)", self.name, response)
        self._count("retry")

        def store_new_message() -> None:
            outbox.forget_receipts(self.connection, self.name, entry.incident)
            outbox.reschedule(self.connection, entry.key, now, str(response), is_answered=True)

        return store_new_message

    def _handle_retry(
        self, entry: OutboxEntry, response: Response, now: float, *, shorten: bool
    ) -> Callable[[], None]:
        delay = retry.retry_delay_seconds(response, entry.tries, self.timing.uniform_random())
        log.warning(
            "Sink %s did not accept a notification (%s); retry in %.1f s",
            self.name,
            response,
            delay,
        )
        self._count("retry")
        shorten = shorten or entry.last_error.startswith(_TOO_LONG_PREFIX)
        text = self._describe(response)
        error = f"{_TOO_LONG_PREFIX}: {response}" if shorten else text
        requested_delay = response.retry_after or 0.0
        self._wait_seconds = max(self.timing.min_interval_seconds, requested_delay)
        is_answered = retry.is_answered(response)

        def store_retry() -> None:
            if requested_delay:
                outbox.postpone_sink(self.connection, self.name, now + requested_delay)
            outbox.reschedule(
                self.connection, entry.key, now + delay, error, is_answered=is_answered
            )

        return store_retry

    def _describe(self, response: Response) -> str:
        """The outcome, and what it means if the status of a program means nothing by itself."""
        if not (is_record(self.sink) and isinstance(self.sink, ExplainingSink)):
            return str(response)
        return self.sink.explain(response).rstrip(".") or str(response)

    def _handle_dead(self, entry: OutboxEntry, error: str) -> Callable[[], None]:
        log.error("Sink %s rejected a notification (%s); it is given up", self.name, error)
        self._count("dead")
        now = self.clock()

        def store_dead() -> None:
            outbox.mark_dead(self.connection, entry.key, error, now)
            substitutes = self.recipients.substitutes
            next_sink = outbox.fail_over(self.connection, entry, self.name, substitutes, now)
            if next_sink is not None:
                log.warning("The notification is passed on to sink %s", next_sink)
                self.on_fail_over()

        return store_dead

    def _count(self, outcome: str) -> None:
        self.counters.add(DELIVERIES_METRIC, f"{self.name}:{outcome}")


def _shorten(notification: Notification) -> Notification:
    incident = notification.incident
    summary = incident.finding.summary[:_SHORTENED_CHARS]
    finding = replace(incident.finding, summary=summary, evidence={})
    incident = replace(incident, finding=finding, remedy=incident.remedy[:_SHORTENED_CHARS])
    return replace(notification, incident=incident)
