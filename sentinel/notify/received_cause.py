"""Compares the cause of a case with the one that a receiver got of it.

A receiver that got another cause gets a correction, also where its messages cannot change. The end
of a case never names a cause that the receiver did not get, except as found late.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from sentinel.model.diagnosis import Diagnosis
from sentinel.model.notification import Notification, NotificationReason
from sentinel.store import notification_codec

MAX_CORRECTIONS = 3
"""Corrections of the cause of a case that a sink gets; its cause may go on changing."""

_RECEIVED_SQL = """
select notification from outbox where incident = ? and sink = ?
and (state in ('delivered', 'sending') or (state in ('queued', 'withheld') and unanswered > 0)
  or key = ?)
order by rowid desc limit 1
"""
"""The newest notification that its receiver got, may have got, or gets first."""

_CORRECTIONS_SQL = """
select count(*) from outbox where incident = ? and sink = ? and reason = 'corrected'
and state != 'merged' and not (state in ('queued', 'withheld') and unanswered = 0)
"""


def with_received_cause(
    connection: sqlite3.Connection,
    sink: str,
    notification: Notification,
    unsent_alert: str | None = None,
) -> Notification:
    """The notification for the receiver of a sink, which may have got another cause of the case.

    An update with another cause, none any more, or one after that, becomes a correction, up to
    `MAX_CORRECTIONS` of a case. The end of a case gets the cause that was received, and a note on
    one that was not. `unsent_alert` is the key of the notification that is sent before it.
    """
    incident, cause = notification.incident.name, notification.diagnosis
    row = connection.execute(_RECEIVED_SQL, (incident, sink, unsent_alert)).fetchone()
    if row is None:
        return notification
    try:
        received = notification_codec.decode(row[0])
    except notification_codec.UnreadableNotificationError:
        return notification
    before = received.diagnosis
    if notification.reason is NotificationReason.RESOLVED:
        return notification if cause is None else _with_late_cause(notification, before, cause)
    if not _is_other(received, cause):
        return notification
    if before is not None:
        notification = replace(notification, replaced_cause=before.title)
    if notification.reason is NotificationReason.UPDATED:
        (count,) = connection.execute(_CORRECTIONS_SQL, (incident, sink)).fetchone()
        if count < MAX_CORRECTIONS:
            return replace(notification, reason=NotificationReason.CORRECTED)
    return notification


def _is_other(received: Notification, cause: Diagnosis | None) -> bool:
    """Whether a receiver does not know the cause, nor that there is none any more."""
    before = received.diagnosis
    if before is None:
        # After a correction without a cause, it has to get the next one.
        return cause is not None and received.reason is NotificationReason.CORRECTED
    return cause is None or before.cause != cause.cause


def _with_late_cause(end: Notification, before: Diagnosis | None, cause: Diagnosis) -> Notification:
    if before is not None and before.cause == cause.cause:
        return end
    note = f"Cause found late: {cause.title} ({cause.confidence_text})."
    return replace(end, diagnosis=before, notes=(*end.notes, note))
