"""Outbox: pages that must reach somebody, kept until they have.

A row is `queued`, then `sending` from before its request leaves until its outcome is stored, then
`delivered` or `dead`. Rows are never deleted: the key of a page that was sent keeps the same page
from being queued again after a restart.
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
"""Seconds that a row is put off at most; one further off than that met a clock set back."""

DELIVERY_STATES = ("queued", "sending", "delivered", "dead")


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """One page for one sink. `tries` counts this one; `created` is in seconds since the epoch."""

    key: str
    notification_json: str
    severity: str
    tries: int
    created: float
    last_error: str


def idempotency_key(notification: Notification, sink: str) -> str:
    """Key of this very page to this very sink, the same after every restart; 32 hex digits."""
    return sha256(f"{notification.name}|{sink}".encode("utf-8", "replace")).hexdigest()[:32]


def enqueue(
    connection: sqlite3.Connection,
    notification: Notification,
    sinks: Iterable[str],
    now: float | None = None,
) -> int:
    """Queue the page for each sink, within the caller's transaction; how many rows were new."""
    created = time.time() if now is None else now
    text, severity = notification_codec.encode(notification), notification.incident.severity.value
    rows = [
        (idempotency_key(notification, sink), sink, text, severity, created, created)
        for sink in sinks
    ]
    return connection.executemany(
        "insert or ignore into outbox(key, sink, page, state, severity, created, next_at)"
        " values(?, ?, ?, 'queued', ?, ?, ?)",
        rows,
    ).rowcount


def requeue_interrupted(connection: sqlite3.Connection) -> int:
    """At start: rows that were being sent when the agent was killed are sent again."""
    return connection.execute("update outbox set state = 'queued' where state = 'sending'").rowcount


# Of each episode only the oldest row is in line, so that no one hears "resolved" before "opened".
_OLDEST_PER_EPISODE_SQL = """
with line as (
    select key, page, severity, tries, created, last_error, state, next_at, min(rowid) as number
    from outbox where sink = :sink and state in ('queued', 'sending')
    group by case when json_valid(page) then json_extract(page, '$.episode') else key end)
"""

_CLAIM_SQL = f"""{_OLDEST_PER_EPISODE_SQL}
select key, page, severity, tries + 1, created, last_error from line
where state = 'queued' and (next_at <= :now or next_at > :now + {MAX_RETRY_DELAY_SECONDS})
order by case severity when 'critical' then 0 when 'warning' then 1 else 2 end, number
limit 1
"""  # noqa: S608 -- a constant of ours


def claim(connection: sqlite3.Connection, sink: str, now: float) -> OutboxEntry | None:
    """The loudest, then oldest page of `sink` that is due, `sending` from now on; None without."""
    row = connection.execute(_CLAIM_SQL, {"sink": sink, "now": now}).fetchone()
    if row is None:
        return None
    entry = OutboxEntry(*row)
    taken = connection.execute(
        "update outbox set state = 'sending', tries = ? where key = ? and state = 'queued'",
        (entry.tries, entry.key),
    )
    return entry if taken.rowcount == 1 else None


def next_attempt_time(connection: sqlite3.Connection, sink: str) -> float | None:
    """When the next queued page of `sink` is due, in seconds since the epoch."""
    query = f"{_OLDEST_PER_EPISODE_SQL} select min(next_at) from line where state = 'queued'"  # noqa: S608
    (moment,) = connection.execute(query, {"sink": sink}).fetchone()
    return None if moment is None else float(moment)


def mark_delivered(connection: sqlite3.Connection, key: str) -> None:
    """The receiver has it."""
    connection.execute(
        "update outbox set state = 'delivered', last_error = '' where key = ?", [key]
    )


def reschedule(connection: sqlite3.Connection, key: str, next_at: float, error: str) -> None:
    """Try again at `next_at`; `error` is a status or a class name, never a message."""
    connection.execute(
        "update outbox set state = 'queued', next_at = ?, last_error = ? where key = ?",
        (next_at, error, key),
    )


def postpone_sink(connection: sqlite3.Connection, sink: str, until: float) -> None:
    """Put off everything queued for `sink`: its receiver asked for silence."""
    connection.execute(
        "update outbox set next_at = max(next_at, ?) where sink = ? and state = 'queued'",
        (until, sink),
    )


def mark_dead(connection: sqlite3.Connection, key: str, error: str) -> None:
    """Give the page up; it stays in the table for people to see."""
    connection.execute(
        "update outbox set state = 'dead', last_error = ? where key = ?", (error, key)
    )


def count_by_state(connection: sqlite3.Connection) -> dict[tuple[str, str], int]:
    """Rows by sink and state."""
    rows = connection.execute("select sink, state, count(*) from outbox group by sink, state")
    return {(sink, state): number for sink, state, number in rows}


def count_undelivered(connection: sqlite3.Connection, sinks: Iterable[str]) -> int:
    """Pages of these sinks that are neither delivered nor given up."""
    found = count_by_state(connection)
    return sum(found.get((sink, state), 0) for sink in sinks for state in ("queued", "sending"))
