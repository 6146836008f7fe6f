"""Decides whether a notification is sent now, held back or dropped.

A notification that a silence or the tier of the run suppresses is pending. It is queued, once, as
soon as nothing suppresses it any more and its case still fires; it is dropped if the case resolves
before that. The end of a case that was sent is not suppressed where it only closes an alert or
changes a message. Pending notifications commit together with their cause, so they survive a
restart.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from sentinel.model.finding import Severity
from sentinel.model.incident import IncidentState, RunTier
from sentinel.model.notification import Notification, NotificationReason, RunContext
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.notify import outbox
from sentinel.notify.recipients import Recipients
from sentinel.notify.run_cost import cost_note
from sentinel.pipeline.engine import Result
from sentinel.store import commands, notification_codec, silences
from sentinel.store.silences import Acknowledgement, Suppression

log = logging.getLogger(__name__)

TIER_KEY = "monitor/tier"
"""Attribute of a START record: the argument `tier` of `sentinel.monitor`.

It overrides the setting.
"""


class NotificationPolicy:
    """Queues notifications for `recipients` as tier, silences and acknowledgements allow.

    `clock` returns seconds since the epoch, `describe_run` the context of a notification that has
    none when it is queued. `enqueue` and `enqueue_pending` run in the caller's
    transaction.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        recipients: Recipients,
        tier: RunTier,
        clock: Callable[[], float],
        describe_run: Callable[[Notification], RunContext] = lambda _: RunContext(),
    ) -> None:
        self.connection = connection
        self.recipients = recipients
        self.clock, self.describe_run = clock, describe_run
        self.suppression = Suppression(tier)
        self.is_catching_up = False
        """Whether the records are from before the agent watched; notifications are held back."""
        self.pending = _load_pending(connection)
        self._data_version = -1

    def poll(self) -> bool:
        """Read silences and acknowledgements that changed; return whether `suppression` changed.

        The first call after the start, or after a change of tier, returns True. Without a write to
        the database by another connection the call takes a few microseconds.
        """
        before, now, is_first = self.suppression, self.clock(), self._data_version < 0
        (version,) = self.connection.execute("pragma data_version").fetchone()
        if version != self._data_version:
            self._data_version = version
            self.suppression = Suppression(
                before.tier,
                silences.active_silences(self.connection, now),
                silences.load_acks(self.connection),
            )
        self.suppression = self.suppression.without_expired(now)
        return is_first or self.suppression != before

    def update(self, result: Result) -> None:
        """Apply the tier that the run was started with, if any."""
        record = result.record
        if (
            record.event is Event.START
            and record.rank == WHOLE_RUN
            and TIER_KEY in record.attributes
        ):
            with suppress(ValueError):
                tier = RunTier(record.attributes[TIER_KEY])
                self.suppression = replace(self.suppression, tier=tier)
                # The next `poll` reports the change.
                self._data_version = -1

    def enqueue(self, notifications: Iterable[Notification]) -> bool:
        """Queue, hold back or drop each notification; return whether any was queued."""
        queued = [self._enqueue_or_hold(notification) for notification in notifications]
        return any(queued)

    def due_notifications(
        self, open_notifications: Callable[[], Iterable[Notification]]
    ) -> list[Notification]:
        """The pending notifications of firing cases that nothing suppresses any more."""
        if not self.pending or self.is_catching_up or self.suppression.tier is RunTier.QUIET:
            return []
        current = {each.incident.name: each for each in open_notifications()}
        delayed = (
            _as_delayed(pending, current[name])
            for name, pending in self.pending.items()
            if name in current
        )
        return [each for each in delayed if _is_firing(each) and not self._is_held_back(each)]

    def acknowledged_notifications(
        self, open_notifications: Callable[[], Iterable[Notification]]
    ) -> list[Notification]:
        """An update of each case that was sent and is acknowledged; queued once by its name."""
        if not self.suppression.acks:
            return []
        return [
            replace(each, reason=NotificationReason.UPDATED, number=int(ack.time))
            for each in open_notifications()
            if (ack := self.suppression.acknowledgement(each.incident)) is not None
            and outbox.is_open(self.connection, each.incident.name)
        ]

    def enqueue_acknowledged(self, notifications: Iterable[Notification]) -> bool:
        """Queue what `acknowledged_notifications` returned; whether any was not queued before."""
        queued = [self._enqueue(notification) for notification in notifications]
        return any(queued)

    def enqueue_pending(self, notifications: Iterable[Notification]) -> None:
        """Queue what `due_notifications` returned."""
        for notification in notifications:
            self._drop_pending(notification)
            self._enqueue(notification)

    def _enqueue_or_hold(self, notification: Notification) -> bool:
        incident = notification.incident
        if incident.severity is Severity.INFO:
            return False
        pending = self.pending.get(incident.name)
        is_suppressed = self.is_catching_up or self._is_suppressed(notification)
        if notification.reason is NotificationReason.RESOLVED:
            self._drop_pending(notification)
            # A case whose opening was never sent needs no resolution.
            is_sent = outbox.is_open(self.connection, incident.name)
            if not is_sent:
                outbox.correct_unsent(self.connection, notification)
            return is_sent and self._enqueue(notification, is_suppressed=is_suppressed)
        if pending is not None:
            notification = replace(notification, reason=pending.reason)
        elif notification.reason is NotificationReason.UPDATED and is_suppressed:
            return False
        if is_suppressed:
            return self._hold_back(notification)
        if self.suppression.is_acknowledged(notification.incidents):
            return False
        self._drop_pending(notification)
        return self._enqueue(notification)

    def _is_held_back(self, notification: Notification) -> bool:
        return self._is_suppressed(notification) or self.suppression.is_acknowledged(
            notification.incidents
        )

    def _is_suppressed(self, notification: Notification) -> bool:
        """Whether every incident of the notification is suppressed."""
        return all(
            self.suppression.is_suppressed(each.key.detector) for each in notification.incidents
        )

    def _enqueue(self, notification: Notification, *, is_suppressed: bool = False) -> bool:
        notes = [*self._command_notes(notification), *self._severity_notes(notification)]
        acks = (self.suppression.acks.get(each.name) for each in notification.incidents)
        notes += [_acknowledgement_note(ack) for ack in acks if ack is not None][:1]
        notes += filter(None, [cost_note(self.connection, notification)])
        severity = self.suppression.notified_severity(notification.incident.severity)
        sent = replace(
            notification,
            incident=replace(notification.incident, severity=severity),
            notes=(*notification.notes, *notes),
            is_acknowledged=self.suppression.is_acknowledged(notification.incidents),
            context=notification.context
            if notification.context != RunContext()
            else self.describe_run(notification),
        )
        now, reached = self.clock(), outbox.sinks_of(self.connection, notification.incident.name)
        sinks, rules = self.recipients.select(sent, reached, now, is_suppressed=is_suppressed)
        new = set[str]()
        if sent.reason is NotificationReason.ESCALATED:
            # The case opens for a sink to which the lower severity was not sent.
            new = set(sinks) - reached
        opening = replace(sent, reason=NotificationReason.OPENED)
        known = [name for name in sinks if name not in new]
        queued = outbox.enqueue(self.connection, sent, known, now, rules)
        queued += outbox.enqueue(self.connection, opening, sorted(new), now, rules)
        return queued > 0

    def _severity_notes(self, notification: Notification) -> Iterable[str]:
        severity, tier = notification.incident.severity, self.suppression.tier
        sent = self.suppression.notified_severity(severity)
        if sent is not severity:
            yield (
                f"The severity is {severity.value}; sent as {sent.value}, because the tier of the"
                f" run is {tier.value!r}."
            )

    def _command_notes(self, notification: Notification) -> Iterable[str]:
        """What the action planner stored when the case became critical."""
        # An update replaces the message at the receiver, or the one that is not delivered yet.
        if notification.reason is not NotificationReason.RESOLVED:
            note = commands.command_note(self.connection, notification.incident.name)
            if note:
                yield note

    def _hold_back(self, notification: Notification) -> bool:
        self.pending[notification.incident.name] = notification
        self.connection.execute(
            "insert or replace into pending_notification(incident, notification) values(?, ?)",
            (notification.incident.name, notification_codec.encode(notification)),
        )
        return False

    def _drop_pending(self, notification: Notification) -> None:
        name = notification.incident.name
        if self.pending.pop(name, None) is not None:
            self.connection.execute("delete from pending_notification where incident = ?", [name])


def _is_firing(notification: Notification) -> bool:
    return any(each.state is IncidentState.FIRING for each in notification.incidents)


def _as_delayed(pending: Notification, current: Notification) -> Notification:
    note = f"Held back at step {pending.step}, and sent now that nothing suppresses it."
    return replace(
        current, reason=pending.reason, step=pending.step, time=pending.time, notes=(note,)
    )


def _acknowledgement_note(ack: Acknowledgement) -> str:
    return silences.with_author(
        f"Acknowledged at {silences.format_utc_time(ack.time)}", ack.author, ack.comment
    )


def _load_pending(connection: sqlite3.Connection) -> dict[str, Notification]:
    pending = {}
    query = "select incident, notification from pending_notification order by rowid"
    for name, text in connection.execute(query):
        try:
            pending[name] = notification_codec.decode(text)
        except notification_codec.UnreadableNotificationError:
            log.exception("The pending notification of %s cannot be decoded", name)
    return pending
