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
from sentinel.model.incident import IncidentState, RunTier
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.notify import notification_codec, outbox
from sentinel.pipeline.engine import Result
from sentinel.store import silences
from sentinel.store.silences import Acknowledgement, Suppression

log = logging.getLogger(__name__)

TIER_KEY = "monitor/tier"
"""The fact by which a run says what `sentinel.monitor` was given; it hides the setting."""


class NotificationPolicy:
    """Queues pages for `sinks`, as far as the run's tier, silences and acknowledgements allow.

    `clock` tells seconds since the epoch. `post` and `pay` want the caller's transaction.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        sinks: Collection[str],
        tier: RunTier,
        clock: Callable[[], float],
    ) -> None:
        self.connection = connection
        self.sinks = sinks
        self.clock = clock
        self.suppression = Suppression(tier)
        self.is_catching_up = False
        """Whether what is posted was over before anybody watched: it is all withheld."""
        self.pending = _load_pending(connection)
        self._data_version = -1

    def poll(self) -> bool:
        """Take up what people entered, and what ended by itself; whether there is news.

        At the first look there is: what the settings say.

        Where nobody wrote into the database this costs a few microseconds.
        """
        before, now, first = self.suppression, self.clock(), self._data_version < 0
        (version,) = self.connection.execute("pragma data_version").fetchone()
        if version != self._data_version:
            self._data_version = version
            found = (
                silences.active_silences(self.connection, now),
                silences.load_acks(self.connection),
            )
            self.suppression = Suppression(before.tier, *found)
        self.suppression = self.suppression.without_expired(now)
        return first or self.suppression != before

    def update(self, result: Result) -> None:
        """Heed the tier that the run was begun with, if it was given one."""
        record = result.record
        if (
            record.event is Event.START
            and record.rank == WHOLE_RUN
            and TIER_KEY in record.attributes
        ):
            with suppress(ValueError):
                self.suppression = replace(
                    self.suppression, tier=RunTier(record.attributes[TIER_KEY])
                )
                # The next look is as good as the first.
                self._data_version = -1

    def enqueue(self, notifications: Iterable[Notification]) -> bool:
        """Queue each page, or owe it, or leave it; whether any was queued."""
        queued = [self._enqueue_or_hold(page) for page in notifications]
        return any(queued)

    def due_notifications(
        self, open_notifications: Callable[[], Iterable[Notification]]
    ) -> list[Notification]:
        """What is owed of cases that still stand, and nothing keeps back any more."""
        if not self.pending or self.is_catching_up or self.suppression.tier is RunTier.QUIET:
            return []
        now = {page.incident.name: page for page in open_notifications()}
        told = (_as_delayed(page, now[name]) for name, page in self.pending.items() if name in now)
        return [page for page in told if _is_firing(page) and not self._is_held_back(page)]

    def enqueue_pending(self, notifications: Iterable[Notification]) -> None:
        """Queue what was due."""
        for page in notifications:
            self._drop_pending(page)
            self._enqueue(page)

    def _enqueue_or_hold(self, notification: Notification) -> bool:
        incident = notification.incident
        if incident.severity is Severity.INFO:
            return False
        waiting = self.pending.get(incident.name)
        hushed = self.is_catching_up or self._is_suppressed(notification)
        if notification.reason is NotificationReason.RESOLVED:
            self._drop_pending(notification)
            # Whoever was never told of it need not hear that it is over.
            return not hushed and waiting is None and self._enqueue(notification)
        if waiting is not None:
            notification = replace(notification, reason=waiting.reason)
        elif notification.reason is NotificationReason.UPDATED or (
            hushed and notification.reason is NotificationReason.CAUSE_FOUND
        ):
            return False
        if hushed:
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
        """Whether nobody is to be told of any incident of the page."""
        return all(
            self.suppression.is_suppressed(each.key.detector) for each in notification.incidents
        )

    def _enqueue(self, notification: Notification) -> bool:
        told = self._with_notified_severity(notification)
        acks = (self.suppression.acks.get(each.name) for each in notification.incidents)
        known = next((ack for ack in acks if ack is not None), None)
        if known is not None:
            told = replace(told, notes=(*told.notes, _acknowledgement_note(known)))
        outbox.enqueue(self.connection, told, self.sinks, self.clock())
        return True

    def _with_notified_severity(self, notification: Notification) -> Notification:
        severity = self.suppression.notified_severity(notification.incident.severity)
        if severity is notification.incident.severity:
            return notification
        note = f"It is {notification.incident.severity.value}; the run's tier {self.suppression.tier.value!r}"
        incident = replace(notification.incident, severity=severity)
        return replace(
            notification, incident=incident, notes=(*notification.notes, f"{note} wakes nobody.")
        )

    def _hold_back(self, notification: Notification) -> bool:
        self.pending[notification.incident.name] = notification
        self.connection.execute(
            "insert or replace into owed(incident, page) values(?, ?)",
            (notification.incident.name, notification_codec.encode(notification)),
        )
        return False

    def _drop_pending(self, notification: Notification) -> None:
        if self.pending.pop(notification.incident.name, None) is not None:
            self.connection.execute(
                "delete from owed where incident = ?", [notification.incident.name]
            )


def _is_firing(notification: Notification) -> bool:
    return any(each.state is IncidentState.FIRING for each in notification.incidents)


def _as_delayed(pending: Notification, current: Notification) -> Notification:
    note = f"Withheld at step {pending.step}, and told now that nothing keeps it back."
    return replace(
        current, reason=pending.reason, step=pending.step, time=pending.time, notes=(note,)
    )


def _acknowledgement_note(ack: Acknowledgement) -> str:
    return silences.with_author(
        f"Acknowledged at {silences.format_utc_time(ack.time)}", ack.author, ack.comment
    )


def _load_pending(connection: sqlite3.Connection) -> dict[str, Notification]:
    owed = {}
    for name, text in connection.execute("select incident, page from owed order by rowid"):
        try:
            owed[name] = notification_codec.decode(text)
        except notification_codec.UnreadableNotificationError:
            log.exception("A page that is owed cannot be read")
    return owed
