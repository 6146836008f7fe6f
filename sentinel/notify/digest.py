"""Limits the messages of a run to one receiver per hour, and summarises the rest in a digest.

Up to `limit` new messages are sent within an hour, of any kind; up to twice as many if the further
ones are critical or end a case. A digest counts what exceeds that, and names what is critical.
Updates and the end of a case that a digest counts are not sent; the end of any other case waits
until there is room.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from sentinel.model.evidence_text import label_of
from sentinel.model.finding import Finding, Severity
from sentinel.model.incident import Incident, IncidentKey, IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN
from sentinel.notify import outbox
from sentinel.notify.outbox import OutboxEntry
from sentinel.store import notification_codec
from sentinel.store.database import transaction

WINDOW_SECONDS = 3600.0
DIGEST_DELAY_SECONDS = 60.0
"""Time for which a digest collects notifications after the first one."""
CRITICAL_DIGEST_INTERVAL_SECONDS = 300.0
"""Shortest interval of two digests if the second contains something critical; else an hour."""
DIGEST_LABEL = "digest"
"""Stands in for the name of a detector in the notification."""

_MAX_LISTED = 8
_CRITICAL = Severity.CRITICAL.value
_UPDATED, _RESOLVED = NotificationReason.UPDATED.value, NotificationReason.RESOLVED.value
_DIGEST_NAMES = f"%/{DIGEST_LABEL}#%"


def limit_rate(  # noqa: PLR0913 - all of them decide
    connection: sqlite3.Connection,
    sink: str,
    entry: OutboxEntry,
    *,
    limit: int,
    can_update: bool,
    now: float,
) -> bool:
    """Whether a claimed notification is not sent now; its row then has the reason.

    What only changes an earlier message, because the sink `can_update`, is not limited.
    """
    if is_digest(entry.incident):
        return False
    is_end, is_update = entry.reason == _RESOLVED, entry.reason == _UPDATED
    has_message = _has_state(connection, sink, entry.incident, "delivered")
    if has_message and (is_update or (is_end and can_update)):
        return False
    is_digested = _has_state(connection, sink, entry.incident, "digested")
    if (is_update or is_end) and is_digested and not has_message:
        _set_state(connection, entry.key, "merged")
        return True
    sent = _sent_times(connection, sink, now, can_update=can_update)
    maximum = 2 * limit if is_end or entry.severity == _CRITICAL else limit
    if len(sent) < maximum:
        return False
    if is_end:
        room_at = sent[-maximum] + WINDOW_SECONDS
        with transaction(connection, mode="immediate"):
            outbox.reschedule(connection, entry.key, room_at, "", is_answered=True)
            # Its age counts from the time at which it may be sent.
            connection.execute("update outbox set created = ? where key = ?", (room_at, entry.key))
    else:
        with transaction(connection, mode="immediate"):
            _digest_due(connection, sink, entry, now)
    return True


def is_digest(incident: str) -> bool:
    """Whether that is the name of the incident of a digest."""
    return f"/{DIGEST_LABEL}#" in incident


def _has_state(connection: sqlite3.Connection, sink: str, incident: str, state: str) -> bool:
    query = "select 1 from outbox where incident = ? and sink = ? and state = ? limit 1"
    return connection.execute(query, (incident, sink, state)).fetchone() is not None


def _set_state(connection: sqlite3.Connection, key: str, state: str) -> None:
    connection.execute("update outbox set state = ? where key = ?", (state, key))


def _sent_times(
    connection: sqlite3.Connection, sink: str, now: float, *, can_update: bool
) -> list[float]:
    """Times of the new messages to the receiver within the last hour, without digests."""
    changes = ("updated", "resolved" if can_update else "updated")
    rows = connection.execute(
        "select finished_at from outbox where sink = ? and state = 'delivered'"
        " and (reason not in (?, ?) or not exists(select 1 from outbox as earlier"
        "  where earlier.incident = outbox.incident and earlier.sink = outbox.sink"
        "  and earlier.state = 'delivered' and earlier.rowid < outbox.rowid))"
        " and finished_at > ? and incident not like ? order by finished_at",
        (sink, *changes, now - WINDOW_SECONDS, _DIGEST_NAMES),
    )
    return [time for (time,) in rows]


def _digest_due(connection: sqlite3.Connection, sink: str, entry: OutboxEntry, now: float) -> None:
    """Count the entry, and what is due beside it and not more severe, in the next digest."""
    is_critical = entry.severity == _CRITICAL
    last_time, count, unsent_key, due_time = connection.execute(
        "select max(finished_at), count(*), max(key) filter (where state = 'queued' and tries = 0),"
        " min(next_at) filter (where state = 'queued' and tries = 0)"
        " from outbox where sink = ? and incident like ? and reason = 'opened'",
        (sink, _DIGEST_NAMES),
    ).fetchone()
    number = count if unsent_key else count + 1
    notification = notification_codec.decode(entry.notification_json)
    name = _build_digest(number, notification, [], ())
    key = outbox.idempotency_key(name, sink)
    connection.execute(
        "update outbox set state = 'digested', digest = ?, finished_at = ? where key = ?"
        " or (sink = ? and state = 'queued' and next_at <= ? and incident not like ?"
        "  and reason in ('opened', 'escalated') and (severity != 'critical' or ?))",
        (key, now, entry.key, sink, now, _DIGEST_NAMES, is_critical),
    )
    digest = _build_digest(
        number, notification, _digested_counts(connection, key), _critical(connection, key)
    )
    interval = CRITICAL_DIGEST_INTERVAL_SECONDS if is_critical else WINDOW_SECONDS
    earliest = max(now + DIGEST_DELAY_SECONDS, (last_time or 0.0) + interval)
    due_time = earliest if unsent_key is None else min(due_time, earliest)
    outbox.enqueue(connection, digest, [sink], now)
    connection.execute(
        "update outbox set notification = ?, severity = ?, created = ?, next_at = ? where key = ?",
        (
            notification_codec.encode(digest),
            digest.incident.severity.value,
            due_time,
            due_time,
            key,
        ),
    )


def _digested_counts(connection: sqlite3.Connection, key: str) -> list[tuple[str, str, int]]:
    """Title, severity and number of the notifications of a digest, the most frequent first."""
    incident = "'$.notification.incident"
    title = (
        f"coalesce(nullif(json_extract(notification, {incident}.title'), ''),"
        f" json_extract(notification, {incident}.key.detector'))"
    )
    return connection.execute(
        f"select {title} as title, severity, count(*) as number from outbox"  # noqa: S608
        " where digest = ? and json_valid(notification)"
        " group by title, severity order by number desc, title",
        [key],
    ).fetchall()


def _critical(connection: sqlite3.Connection, key: str) -> tuple[Incident, ...]:
    """The first critical incidents of a digest."""
    rows = connection.execute(
        "select notification from outbox where digest = ? and severity = 'critical'"
        " and json_valid(notification) order by rowid limit ?",
        (key, _MAX_LISTED),
    )
    return tuple(notification_codec.decode(text).incident for (text,) in rows)


def _build_digest(
    number: int,
    newest: Notification,
    counts: list[tuple[str, str, int]],
    critical: tuple[Incident, ...],
) -> Notification:
    """The notification of digest `number`; `newest` is one of those that it counts."""
    total = sum(count for _, _, count in counts)
    critical_total = sum(count for _, severity, count in counts if severity == _CRITICAL)
    severity = Severity.CRITICAL if critical_total else Severity.WARNING
    is_plural = total != 1
    lines = [
        f"{total} further notification{'s are' if is_plural else ' is'} summarised here.",
        f"{critical_total} of them {'are' if critical_total != 1 else 'is'} critical.",
        *(f"{label_of(title)}: {count}, {level}." for title, level, count in counts[:_MAX_LISTED]),
    ]
    incident = Incident(
        key=IncidentKey(newest.incident.key.run, WHOLE_RUN, DIGEST_LABEL),
        episode=number,
        severity=severity,
        signal="",
        remedy="Look at the page of the run, or run `sentinel status`. The limit is the setting"
        " `max_notifications_per_hour`.",
        finding=Finding(" ".join(lines), {}),
        onset_step=newest.step,
        opened_step=newest.step,
        opened_time=newest.time,
        state=IncidentState.FIRING,
    )
    return Notification(
        NotificationReason.OPENED,
        incident,
        newest.step,
        newest.time,
        others=critical,
        context=replace(newest.context, runbook_url="", checkpoint_path=""),
    )
