"""The outbox: notifications stored until they are delivered.

A row is `queued`, then `sending` from before its request is sent until its outcome is stored, then
`delivered` or `dead`. Rows are never deleted: the key of a sent notification prevents the same
notification from being queued again after a restart.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

from sentinel.model.notification import Notification
from sentinel.notify import notification_codec

MAX_RETRY_DELAY_SECONDS = 3600.0
"""Longest delay of a row. A row that is due later than that shows a clock that was set back."""

DELIVERY_STATES = ("queued", "sending", "delivered", "dead")


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """One notification for one sink; `tries` includes this try, `created` is in epoch seconds."""

    key: str
    notification_json: str
    severity: str
    tries: int
    created: float
    last_error: str


def idempotency_key(notification: Notification, sink: str) -> str:
    """32 hex digits that identify this notification to this sink, stable across restarts."""
    return sha256(f"{notification.name}|{sink}".encode("utf-8", "replace")).hexdigest()[:32]


def enqueue(
    connection: sqlite3.Connection,
    notification: Notification,
    sinks: Iterable[str],
    now: float | None = None,
) -> int:
    """Queue the notification for each sink in the caller's transaction; return how many are new."""
    created = time.time() if now is None else now
    text, severity = notification_codec.encode(notification), notification.incident.severity.value
    rows = [
        (idempotency_key(notification, sink), sink, text, severity, created, created)
        for sink in sinks
    ]
    return connection.executemany(
        "insert or ignore into outbox(key, sink, notification, state, severity, created, next_at)"
        " values(?, ?, ?, 'queued', ?, ?, ?)",
        rows,
    ).rowcount


def is_open(connection: sqlite3.Connection, incident: str) -> bool:
    """Whether the opening of an incident was queued, for any sink, and its resolution was not."""
    reasons = connection.execute(
        "select distinct json_extract(notification, '$.notification.reason') from outbox"
        " where case when json_valid(notification)"
        " then json_extract(notification, '$.incident_name') end = ?",
        [incident],
    ).fetchall()
    return ("opened",) in reasons and ("resolved",) not in reasons


def requeue_interrupted(connection: sqlite3.Connection) -> int:
    """Queue the rows again that were being sent when the last agent was killed."""
    return connection.execute("update outbox set state = 'queued' where state = 'sending'").rowcount


# Only the oldest row of each incident is eligible, so that "resolved" never overtakes "opened".
_OLDEST_PER_INCIDENT_SQL = """
with oldest as (
    select key, notification, severity, tries, created, last_error, state, next_at,
        min(rowid) as number
    from outbox where sink = :sink and state in ('queued', 'sending')
    group by case when json_valid(notification)
        then coalesce(json_extract(notification, '$.incident_name'), key) else key end)
"""

_CLAIM_SQL = f"""{_OLDEST_PER_INCIDENT_SQL}
select key, notification, severity, tries + 1, created, last_error from oldest
where state = 'queued' and (next_at <= :now or next_at > :now + {MAX_RETRY_DELAY_SECONDS})
order by case severity when 'critical' then 0 when 'warning' then 1 else 2 end, number
limit 1
"""  # noqa: S608 -- built from constants


def claim(connection: sqlite3.Connection, sink: str, now: float) -> OutboxEntry | None:
    """Mark the most severe, then oldest, due notification of `sink` as `sending` and return it."""
    row = connection.execute(_CLAIM_SQL, {"sink": sink, "now": now}).fetchone()
    if row is None:
        return None
    entry = OutboxEntry(*row)
    claimed = connection.execute(
        "update outbox set state = 'sending', tries = ? where key = ? and state = 'queued'",
        (entry.tries, entry.key),
    )
    return entry if claimed.rowcount == 1 else None


def next_attempt_time(connection: sqlite3.Connection, sink: str) -> float | None:
    """Epoch seconds at which the next queued notification of `sink` is due."""
    query = f"{_OLDEST_PER_INCIDENT_SQL} select min(next_at) from oldest where state = 'queued'"  # noqa: S608
    (due_time,) = connection.execute(query, {"sink": sink}).fetchone()
    return None if due_time is None else float(due_time)


def mark_delivered(connection: sqlite3.Connection, key: str) -> None:
    """Record that the receiver accepted the notification."""
    connection.execute(
        "update outbox set state = 'delivered', last_error = '' where key = ?", [key]
    )


def reschedule(connection: sqlite3.Connection, key: str, next_at: float, error: str) -> None:
    """Queue the row again for `next_at`; `error` is a status or a class name, never a message."""
    connection.execute(
        "update outbox set state = 'queued', next_at = ?, last_error = ? where key = ?",
        (next_at, error, key),
    )


def postpone_sink(connection: sqlite3.Connection, sink: str, until: float) -> None:
    """Delay everything queued for `sink`, as its receiver requests."""
    connection.execute(
        "update outbox set next_at = max(next_at, ?) where sink = ? and state = 'queued'",
        (until, sink),
    )


def mark_dead(connection: sqlite3.Connection, key: str, error: str) -> None:
    """Give the notification up; the row remains for inspection."""
    connection.execute(
        "update outbox set state = 'dead', last_error = ? where key = ?", (error, key)
    )


def count_by_state(connection: sqlite3.Connection) -> dict[tuple[str, str], int]:
    """Number of rows by sink and state."""
    rows = connection.execute("select sink, state, count(*) from outbox group by sink, state")
    return {(sink, state): number for sink, state, number in rows}


def count_undelivered(connection: sqlite3.Connection, sinks: Iterable[str]) -> int:
    """Number of notifications of these sinks that are neither delivered nor given up."""
    counts = count_by_state(connection)
    return sum(counts.get((sink, state), 0) for sink in sinks for state in ("queued", "sending"))
