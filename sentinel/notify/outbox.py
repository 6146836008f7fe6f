"""The outbox: notifications stored until they are delivered.

A row is `queued`, or `withheld` until the end of quiet hours. It is `sending` from before its
delivery until the outcome is stored, then `delivered` or `dead`. A notification that another one,
or the end of its case, replaces before it reached a receiver is `merged`; one that a digest counts
is `digested`. One that turned out to be wrong before it was sent is `withdrawn`. Rows are never
deleted: the key of a sent notification prevents the same notification from being queued again after
a restart.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import groupby
from typing import NamedTuple

from sentinel.model.delivery_problem import DeliveryProblem
from sentinel.model.finding import Severity
from sentinel.model.incident import ENDS_OF_RUN, Incident, IncidentKey, IncidentState, Resolution
from sentinel.model.notification import Notification, NotificationReason
from sentinel.notify import retry
from sentinel.notify.received_cause import with_received_cause
from sentinel.pipeline.incidents import KnownEpisode
from sentinel.store import notification_codec

MAX_RETRY_DELAY_SECONDS = 3600.0
"""Longest delay of a row. A row that is due later than that shows a clock that was set back."""

CORRECTION_HOLD_SECONDS = 10.0
"""Time for which a correction waits: a cause that returns within it is not reported."""

_OPENED, _ESCALATED, _UPDATED, _CORRECTED, _ENDED, _RESOLVED = (
    reason.value for reason in NotificationReason
)

_LASTING_ENDS = (Resolution.STARTED_AGAIN, *ENDS_OF_RUN)
"""Reasons that end a case which fires: they replace no message that alerts someone."""

_SETTLED = (Resolution.ACKNOWLEDGED, Resolution.EXPIRED)
"""Reasons after which a first message is no longer sent: a person saw the case, or it is old."""

_TOO_OLD = "too old"


class OutboxEntry(NamedTuple):
    """One notification for one sink; `tries` includes this try, `created` is in epoch seconds.

    `receipt` is that of the newest message of its incident which the receiver accepted.
    """

    key: str
    incident: str
    reason: str
    notification_json: str
    severity: str
    tries: int
    created: float
    last_error: str
    receipt: str | None = None


class _PendingRow(NamedTuple):
    """How far the notification for one sink is, before it is sent."""

    key: str
    reason: str
    state: str
    tries: int
    unanswered: int
    next_at: float


class DeliveryRow(NamedTuple):
    """How far a notification for one sink is; times in epoch seconds."""

    reason: str
    state: str
    last_error: str
    next_at: float
    finished_at: float | None


@dataclass(frozen=True, slots=True)
class QueueRules:
    """How a notification is queued.

    `hold_seconds` delays the first notification of a case. The sinks of `updatable` get updates. A
    sink of `withheld` gets a new message at that time (epoch seconds), if at all. A sink of
    `silent` does not get the end of a case. That only removes what is withheld of it, and whatever
    is unsent if the case was acknowledged or expired.
    """

    hold_seconds: float = 0.0
    updatable: Collection[str] = ()
    withheld: Mapping[str, float] = field(default_factory=dict)
    silent: Collection[str] = ()


_DEFAULT_RULES = QueueRules()


class Substitutes(NamedTuple):
    """The sinks that may get what another one rejected, in the order in which they are tried.

    The route of `admitting` permits the notification; `others` get it if none of those takes it.
    """

    admitting: Sequence[str]
    others: Sequence[str]
    rules: QueueRules = _DEFAULT_RULES


def idempotency_key(notification: Notification, sink: str) -> str:
    """32 hex digits that identify this notification to this sink, stable across restarts."""
    return sha256(f"{notification.name}|{sink}".encode("utf-8", "replace")).hexdigest()[:32]


def enqueue(
    connection: sqlite3.Connection,
    notification: Notification,
    sinks: Iterable[str],
    now: float | None = None,
    rules: QueueRules = _DEFAULT_RULES,
) -> int:
    """Queue the notification for each sink in the caller's transaction; return how many changed.

    It takes the place of what its case has in the queue and no receiver has got.
    """
    # It takes the write lock: a transaction that reads first cannot write after another one wrote.
    connection.execute("update outbox set key = key where false")
    created = time.time() if now is None else now
    if notification.reason is NotificationReason.RESOLVED:
        if notification.incident.resolution in _SETTLED:
            for sink in rules.silent:
                pending = _pending_rows(connection, sink, notification.incident.name)
                _mark_merged(connection, pending)
        sinks = [
            sink for sink in sinks if not _is_needless_end(connection, notification, sink, rules)
        ]
    return sum(_enqueue_for(connection, notification, sink, created, rules) for sink in sinks)


def _is_needless_end(
    connection: sqlite3.Connection, notification: Notification, sink: str, rules: QueueRules
) -> bool:
    """Whether the end of a case is not sent to that sink, and replaces nothing in its queue."""
    name = notification.incident.name
    pending = _pending_rows(connection, sink, name)
    if sink in rules.silent:
        return not any(row.state == "withheld" for row in pending)
    # It closes nothing where the alert was given up.
    is_received = bool(pending) or _may_have_message(connection, sink, name)
    return notification.is_silent and not is_received


def _enqueue_for(
    connection: sqlite3.Connection,
    notification: Notification,
    sink: str,
    now: float,
    rules: QueueRules,
) -> bool:
    key = idempotency_key(notification, sink)
    if _is_known(connection, sink, notification, key):
        return False
    if _is_withdrawn(connection, sink, notification.incident.name):
        # Its receiver got no message of the case, and needs none of its end.
        _insert(connection, sink, notification, "withdrawn", created=now, next_at=now)
        return False
    if notification.reason is NotificationReason.RESOLVED:
        return _enqueue_end(connection, notification, sink, now, rules)
    corrected = with_received_cause(connection, sink, notification)
    if corrected.reason is not notification.reason:
        _insert(connection, sink, notification, "merged", created=now, next_at=now)
    return _enqueue_or_merge(connection, corrected, sink, now, rules)


def _enqueue_or_merge(
    connection: sqlite3.Connection,
    notification: Notification,
    sink: str,
    now: float,
    rules: QueueRules,
) -> bool:
    """Queue the notification, or make it a part of a message that is not delivered yet."""
    reason = notification.reason
    withheld_until = _withheld_until(reason, sink, rules)
    pending = _pending_rows(connection, sink, notification.incident.name)
    if reason is NotificationReason.UPDATED:
        # The receiver got that cause, or there is none any more.
        _mark_merged(connection, [row for row in pending if _is_unsent_correction(row)])
        pending = [row for row in pending if not _is_unsent_correction(row)]
    newest = pending[-1] if pending else None
    if newest is not None and newest.unanswered == 0 and _replaces_content(newest, reason):
        _replace_content(connection, newest, notification, now, is_withheld=bool(withheld_until))
        _insert(connection, sink, notification, "merged", created=now, next_at=now)
        return True
    if reason is NotificationReason.UPDATED:
        if sink not in rules.updatable:
            return False
        # Its own back-off continues: updates that follow each other are not tried more often.
        now = max([now, *(row.next_at for row in pending)])
        _mark_merged(connection, [row for row in pending if row.reason == _UPDATED])
    elif reason is not NotificationReason.OPENED:
        _mark_merged(connection, pending)
    _insert_unsent(connection, notification, sink, now, rules)
    return True


def _enqueue_end(
    connection: sqlite3.Connection,
    notification: Notification,
    sink: str,
    now: float,
    rules: QueueRules,
) -> bool:
    """Queue the end of a case instead of what is not delivered of it, or after its alert."""
    pending = _pending_rows(connection, sink, notification.incident.name)
    alert = _unsent_alert(notification, pending)
    key = None if alert is None else alert.key
    notification = with_received_cause(connection, sink, notification, key)
    _mark_merged(connection, [row for row in pending if row.key != key])
    if alert is not None:
        # A correction waits for a cause that returns, but none does any more. What failed is tried
        # once more now: the agent may end before the next try.
        connection.execute(
            "update outbox set next_at = min(next_at, ?)"
            " where key = ? and (reason = ? or tries > 0)",
            (now, key, _CORRECTED),
        )
    elif pending and pending[0].reason == _OPENED:
        if pending[0].state == "withheld":
            _insert(connection, sink, notification, "merged", created=now, next_at=now)
            return False
        notification = _as_fired_and_resolved(notification)
    _insert_unsent(connection, notification, sink, now, rules)
    return True


def _unsent_alert(notification: Notification, pending: Sequence[_PendingRow]) -> _PendingRow | None:
    """The queued message that is sent before the end of its case, and not replaced by it.

    A case that fires when its run or training ends has a problem that is not over. Its end alone
    would alert no one: PagerDuty and Alertmanager ignore the end of an alert that they do not know.
    """
    if notification.incident.resolution not in _LASTING_ENDS:
        return None
    queued = (row for row in pending if row.state == "queued")
    return next((row for row in queued if row.reason != _UPDATED), None)


def _withheld_until(reason: NotificationReason, sink: str, rules: QueueRules) -> float | None:
    """The time until which a message waits for the end of quiet hours; a change does not wait."""
    is_change = sink in rules.updatable and reason.value in (_UPDATED, _RESOLVED)
    return None if is_change else rules.withheld.get(sink)


def _hold_seconds(reason: NotificationReason, rules: QueueRules) -> float:
    """Time for which a message waits for what may replace it."""
    if reason is NotificationReason.CORRECTED:
        return CORRECTION_HOLD_SECONDS
    return rules.hold_seconds if reason is NotificationReason.OPENED else 0.0


def _is_unsent_correction(row: _PendingRow) -> bool:
    return row.reason == _CORRECTED and row.unanswered == 0


def _is_known(
    connection: sqlite3.Connection, sink: str, notification: Notification, key: str
) -> bool:
    """Whether the notification was queued before, or the receiver has the end of its case.

    The latter is possible if the records are read again after damage to the database.
    """
    query = (
        "select 1 from outbox where key = ?1 or (incident = ?2 and sink = ?3 and reason = ?4"
        " and state = 'delivered' and ?5)"
    )
    is_end = notification.reason is NotificationReason.RESOLVED
    values = (key, notification.incident.name, sink, _RESOLVED, not is_end)
    return connection.execute(query, values).fetchone() is not None


def _replaces_content(row: _PendingRow, reason: NotificationReason) -> bool:
    """Whether a notification becomes the content of a row that its receiver has not got."""
    if reason is NotificationReason.CORRECTED:
        return row.reason in (_OPENED, _ESCALATED, _CORRECTED, _ENDED)
    if reason in (NotificationReason.UPDATED, NotificationReason.ENDED):
        return row.reason in (_OPENED, _ESCALATED, _ENDED)
    return reason is NotificationReason.ESCALATED and row.reason == _OPENED


def _replace_content(
    connection: sqlite3.Connection,
    row: _PendingRow,
    notification: Notification,
    now: float,
    *,
    is_withheld: bool,
) -> None:
    # The reason stays, and with it the name and the key.
    merged = replace(notification, reason=NotificationReason(row.reason))
    connection.execute(
        "update outbox set notification = ?, severity = ? where key = ?",
        (notification_codec.encode(merged), notification.incident.severity.value, row.key),
    )
    if notification.reason is NotificationReason.ESCALATED and not is_withheld:
        is_released = row.state == "withheld" or row.tries > 0
        connection.execute(
            "update outbox set state = 'queued', next_at = iif(?, ?, next_at),"
            " created = iif(state = 'withheld', ?, created) where key = ?",
            (is_released, now, now, row.key),
        )


def correct_unsent(connection: sqlite3.Connection, notification: Notification) -> None:
    """Correct the dates of undelivered messages of a case whose onset was estimated after its end.

    `notification` is that end, with the estimate.
    """
    rows = connection.execute(
        "select key, notification from outbox where incident = ?"
        " and state in ('queued', 'withheld') and unanswered = 0",
        [notification.incident.name],
    ).fetchall()
    dated = {each.name: each for each in notification.incidents}
    for key, text in rows:
        queued = notification_codec.decode(text)
        corrected = replace(
            queued,
            incident=_with_dates(queued.incident, dated),
            others=tuple(_with_dates(each, dated) for each in queued.others),
        )
        if _cause(queued) == _cause(notification):
            # Another one is that which the receiver got.
            diagnosis, context = notification.diagnosis, notification.context
            corrected = replace(corrected, diagnosis=diagnosis, context=context)
        connection.execute(
            "update outbox set notification = ? where key = ?",
            (notification_codec.encode(corrected), key),
        )


def _with_dates(incident: Incident, dated: Mapping[str, Incident]) -> Incident:
    source = dated.get(incident.name, incident)
    return replace(
        incident,
        onset_step=source.onset_step,
        onset_range=source.onset_range,
        last_good_step=source.last_good_step,
    )


def _cause(notification: Notification) -> str:
    return "" if notification.diagnosis is None else notification.diagnosis.cause


def _as_fired_and_resolved(notification: Notification) -> Notification:
    incident = notification.incident
    end = f"was over at step {incident.resolved_step}"
    if incident.lasted_until is not None:
        end = f"lasted to step {incident.resolved_step}, when {incident.lasted_until.value}"
    note = f"It fired at step {incident.opened_step} and {end}."
    return replace(notification, notes=(*notification.notes, f"{note} This is the first message."))


def _insert_unsent(
    connection: sqlite3.Connection,
    notification: Notification,
    sink: str,
    now: float,
    rules: QueueRules,
) -> None:
    withheld_until = _withheld_until(notification.reason, sink, rules)
    # If it is withheld, its age counts from the time at which it may be sent.
    _insert(
        connection,
        sink,
        notification,
        "withheld" if withheld_until else "queued",
        created=withheld_until or now,
        next_at=withheld_until or now + _hold_seconds(notification.reason, rules),
    )


def _insert(  # noqa: PLR0913 - the columns of one row
    connection: sqlite3.Connection,
    sink: str,
    notification: Notification,
    state: str,
    *,
    created: float,
    next_at: float,
) -> None:
    connection.execute(
        "insert or ignore into outbox(key, sink, incident, reason, notification, state, severity,"
        " created, next_at) values(?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            idempotency_key(notification, sink),
            sink,
            notification.incident.name,
            notification.reason.value,
            notification_codec.encode(notification),
            state,
            notification.incident.severity.value,
            created,
            next_at,
        ),
    )


def insert_missing(connection: sqlite3.Connection, sink: str, entry: OutboxEntry) -> None:
    """Insert the row of an entry that was claimed, if the database lost it meanwhile."""
    connection.execute(
        "insert or ignore into outbox(key, sink, incident, reason, notification, state, severity,"
        " tries, created, next_at) values(?, ?, ?, ?, ?, 'sending', ?, ?, ?, ?)",
        (
            entry.key,
            sink,
            entry.incident,
            entry.reason,
            entry.notification_json,
            entry.severity,
            entry.tries,
            entry.created,
            entry.created,
        ),
    )


def _pending_rows(connection: sqlite3.Connection, sink: str, incident: str) -> list[_PendingRow]:
    rows = connection.execute(
        "select key, reason, state, tries, unanswered, next_at from outbox"
        " where incident = ? and sink = ? and state in ('queued', 'withheld') order by rowid",
        (incident, sink),
    )
    return [_PendingRow(*row) for row in rows]


def _mark_merged(connection: sqlite3.Connection, rows: Iterable[_PendingRow]) -> None:
    connection.executemany(
        "update outbox set state = 'merged' where key = ?", [(row.key,) for row in rows]
    )


def withdraw(connection: sqlite3.Connection, incident: str) -> int:
    """Take back what certainly reached no receiver of an incident; returns how many rows."""
    return connection.execute(
        "update outbox set state = 'withdrawn'"
        " where incident = ? and state in ('queued', 'withheld') and unanswered = 0",
        [incident],
    ).rowcount


def restore_withdrawn(connection: sqlite3.Connection, incident: str, now: float) -> int:
    """Queue again what was taken back of an incident that fires again; returns how many rows."""
    return connection.execute(
        "update outbox set state = 'queued', next_at = ?"
        " where incident = ? and state = 'withdrawn' and reason != ?",
        (now, incident, _RESOLVED),
    ).rowcount


def _is_withdrawn(connection: sqlite3.Connection, sink: str, incident: str) -> bool:
    """Whether all notifications of the incident were taken back before that sink got one."""
    query = (
        "select count(*), sum(state in ('withdrawn', 'merged')), sum(state = 'withdrawn')"
        " from outbox where incident = ? and sink = ?"
    )
    rows, unsent, withdrawn = connection.execute(query, (incident, sink)).fetchone()
    return bool(withdrawn) and rows == unsent


def is_open(connection: sqlite3.Connection, incident: str) -> bool:
    """Whether the opening of an incident was queued, for any sink, and its resolution was not."""
    query = "select distinct reason from outbox where incident = ?"
    reasons = connection.execute(query, [incident]).fetchall()
    return (_OPENED,) in reasons and (_RESOLVED,) not in reasons


def episodes(connection: sqlite3.Connection) -> dict[IncidentKey, dict[int, KnownEpisode]]:
    """The incidents of queued and sent notifications, by detector and number of the episode."""
    found: dict[IncidentKey, dict[int, KnownEpisode]] = {}
    rows = connection.execute("select notification from outbox where notification != ''")
    for (text,) in rows:
        try:
            notification = notification_codec.decode(text)
        except notification_codec.UnreadableNotificationError:
            continue
        for each in notification.incidents:
            known = found.setdefault(each.key, {})
            was_open = known[each.episode].is_open if each.episode in known else True
            known[each.episode] = KnownEpisode(
                each.episode,
                each.opened_step,
                each.opened_time,
                is_open=was_open and each.state is not IncidentState.RESOLVED,
            )
    return found


_HAS_ENDED_SQL = """
select 1 from outbox where sink = ? and incident = ? and state = 'delivered' and (reason = ? or
    iif(json_valid(notification),
        json_extract(notification, '$.notification.incident.state') = 'firing'
        and json_extract(notification, '$.notification.incident.resolution') is not null, false))
"""


def has_ended(connection: sqlite3.Connection, sink: str, incident: str) -> bool:
    """Whether the sink delivered that the run finished while the case fires.

    That can be a part of an earlier message, see `Incident.is_ended_firing`.
    """
    row = connection.execute(_HAS_ENDED_SQL, (sink, incident, _ENDED)).fetchone()
    return row is not None


def sinks_of(connection: sqlite3.Connection, incident: str) -> set[str]:
    """The sinks for which a notification of the incident was queued."""
    query = "select distinct sink from outbox where incident = ?"
    return {sink for (sink,) in connection.execute(query, [incident])}


def requeue_interrupted(
    connection: sqlite3.Connection, now: float = 0.0, hold_seconds: float = 0.0
) -> int:
    """Queue the rows again that were being sent when the last agent was killed.

    A warning that was not sent yet is held again: what the last agent had not read may replace it.
    """
    connection.execute(
        "update outbox set next_at = max(next_at, ?)"
        " where state = 'queued' and tries = 0 and severity = 'warning'",
        [now + hold_seconds],
    )
    rows = connection.execute("select key, next_at from outbox where state = 'sending'").fetchall()
    for key, next_at in rows:
        reschedule(connection, key, next_at, "AgentKilled", is_answered=False)
    return len(rows)


# Only the oldest row of each incident is eligible, so that "resolved" never overtakes "opened".
_OLDEST_PER_INCIDENT_SQL = """
with oldest as (
    select key, severity, state, next_at, min(rowid) as number
    from outbox where sink = :sink and state in ('queued', 'withheld', 'sending')
    group by incident)
"""

_CLAIM_SQL = f"""
update outbox set state = 'sending', tries = tries + 1 where key = (
    select key from ({_OLDEST_PER_INCIDENT_SQL} select * from oldest)
    where (state in ('queued', 'withheld') and next_at <= :now)
        or (state = 'queued' and next_at > :now + {MAX_RETRY_DELAY_SECONDS})
    order by case severity when 'critical' then 0 when 'warning' then 1 else 2 end, number
    limit 1)
returning key, incident, reason, notification, severity, tries, created, last_error
"""  # noqa: S608 -- built from constants


def claim(connection: sqlite3.Connection, sink: str, now: float) -> OutboxEntry | None:
    """Mark the most severe, then oldest, due notification of `sink` as `sending` and return it."""
    due_time = next_attempt_time(connection, sink, now)
    # Without anything due, the write lock of the agent is not taken.
    if due_time is None or now < due_time <= now + MAX_RETRY_DELAY_SECONDS:
        return None
    rows = connection.execute(_CLAIM_SQL, {"sink": sink, "now": now}).fetchall()
    if not rows:
        return None
    entry = OutboxEntry(*rows[0])
    return entry._replace(receipt=newest_receipt(connection, sink, entry.incident))


def next_attempt_time(
    connection: sqlite3.Connection, sink: str, now: float | None = None
) -> float | None:
    """Epoch seconds at which the next notification of `sink` is due; None if there is none."""
    now = time.time() if now is None else now
    query = f"{_OLDEST_PER_INCIDENT_SQL} select min(next_at) from oldest where state != 'sending'"  # noqa: S608
    (due_time,) = connection.execute(query, {"sink": sink}).fetchone()
    return None if due_time is None else max(due_time, _paused_until(connection, sink, now))


def firing_keys(connection: sqlite3.Connection, sink: str) -> list[str]:
    """Keys of the newest accepted notification of each case that is not over for the receiver."""
    rows = connection.execute(
        "select key, reason, max(rowid) from outbox where sink = ? and state = 'delivered'"
        " group by incident",
        [sink],
    )
    return [key for key, reason, _ in rows if reason != _RESOLVED]


def delivered_entry(connection: sqlite3.Connection, key: str) -> OutboxEntry:
    """The notification with that key, and its receipt."""
    row = connection.execute(
        "select key, incident, reason, notification, severity, tries, created, last_error, receipt"
        " from outbox where key = ?",
        [key],
    ).fetchone()
    return OutboxEntry(*row)


def newest_receipt(connection: sqlite3.Connection, sink: str, incident: str) -> str | None:
    """The receipt of the newest message of the incident that has one."""
    row = connection.execute(
        "select receipt from outbox where incident = ? and sink = ? and receipt is not null"
        " order by rowid desc limit 1",
        (incident, sink),
    ).fetchone()
    return None if row is None else str(row[0])


def forget_receipts(connection: sqlite3.Connection, sink: str, incident: str) -> None:
    """Send the next notification of the incident as a new message: the earlier one is gone."""
    connection.execute(
        "update outbox set receipt = null where incident = ? and sink = ?", (incident, sink)
    )


def mark_delivered(
    connection: sqlite3.Connection, key: str, now: float | None = None, receipt: str | None = None
) -> None:
    """Record that the receiver accepted the notification, and retry the others of its sink now."""
    now = time.time() if now is None else now
    connection.execute(
        "update outbox set state = 'delivered', last_error = '', finished_at = ?, receipt = ?"
        " where key = ?",
        (now, receipt, key),
    )
    connection.execute(
        "update outbox set next_at = ? where state = 'queued' and tries > 0 and next_at > ?"
        " and sink = (select sink from outbox where key = ?)",
        (now, now, key),
    )


# The end of a case that lasts replaces no message that alerts someone, see `_unsent_alert`.
_RESCHEDULE_SQL = f"""
update outbox set next_at = ?, last_error = ?, unanswered = unanswered + ?,
state = iif(exists(select 1 from outbox as later
    where later.sink = outbox.sink and later.incident = outbox.incident
    and later.rowid > outbox.rowid and later.state = 'queued'
    and (outbox.reason = 'updated' or later.reason in ('escalated', 'corrected', 'ended')
        or (later.reason = 'resolved' and (iif(json_valid(later.notification),
            json_extract(later.notification, '$.notification.incident.resolution'), null)
            in ({", ".join(f"'{each.value}'" for each in _LASTING_ENDS)})) is not true))),
'merged', 'queued') where key = ?
"""  # noqa: S608 -- built from constants


def reschedule(
    connection: sqlite3.Connection,
    key: str,
    next_at: float,
    error: str,
    *,
    is_answered: bool = True,
) -> None:
    """Queue the row again for `next_at`, unless a later notification of its case replaces it.

    `error` is a status or a class name, never a message. Without an answer the receiver may have
    accepted the notification.
    """
    connection.execute(_RESCHEDULE_SQL, (next_at, error, not is_answered, key))


def postpone_sink(connection: sqlite3.Connection, sink: str, until: float) -> None:
    """Send nothing to `sink` before that time (epoch seconds), as its receiver requests."""
    connection.execute("insert or replace into sink_pause(sink, until) values(?, ?)", (sink, until))


def store_addresses(connection: sqlite3.Connection, addresses: Mapping[str, str]) -> None:
    """Store which receivers the sinks of this outbox have, see `sink_address`."""
    query = "insert or replace into sink_address(sink, address) values(?, ?)"
    connection.executemany(query, addresses.items())


def load_addresses(connection: sqlite3.Connection) -> dict[str, str]:
    """The addresses that the last agent stored, by sink."""
    return dict(connection.execute("select sink, address from sink_address").fetchall())


def _paused_until(connection: sqlite3.Connection, sink: str, now: float) -> float:
    row = connection.execute("select until from sink_pause where sink = ?", [sink]).fetchone()
    until = 0.0 if row is None else float(row[0])
    # A later time shows a clock that was set back.
    return 0.0 if until > now + MAX_RETRY_DELAY_SECONDS + 1.0 else until


def shift_times(connection: sqlite3.Connection, sink: str, seconds: float) -> None:
    """Follow a clock that was set forward by so many seconds: ages and delays stay the same.

    The end of quiet hours, until which a row is withheld, is a time of day and stays.
    """
    connection.execute(
        "update outbox set created = created + ?1, next_at = next_at + ?1"
        " where sink = ?2 and state in ('queued', 'sending')",
        (seconds, sink),
    )
    connection.execute("update sink_pause set until = until + ? where sink = ?", (seconds, sink))


def mark_dead(
    connection: sqlite3.Connection, key: str, error: str, now: float | None = None
) -> None:
    """Give the notification up; the row remains for inspection."""
    now = time.time() if now is None else now
    connection.execute(
        "update outbox set state = 'dead', last_error = ?, finished_at = ? where key = ?",
        (error, now, key),
    )


def give_up_old(
    connection: sqlite3.Connection,
    sinks: Collection[str],
    now: float,
    closable: Collection[str] = (),
) -> int:
    """Give up what is too old for these sinks, also if it was never tried; return how many rows.

    The end of a case that a sink of `closable` has is sent at any age: it closes an alert.
    """
    rows = connection.execute(
        "select key, sink, incident, reason, severity, created, last_error from outbox"
        " where state in ('queued', 'withheld')"
    ).fetchall()
    given_up = 0
    for key, sink, incident, reason, severity, created, error in rows:
        if sink not in sinks or now - created < retry.max_age_seconds(severity):
            continue
        closes_alert = reason == _RESOLVED and sink in closable
        if not (closes_alert and _may_have_message(connection, sink, incident)):
            mark_dead(connection, key, error or _TOO_OLD, now)
            given_up += 1
    return given_up


def fail_over(
    connection: sqlite3.Connection,
    entry: OutboxEntry,
    sink: str,
    substitutes: Callable[[Notification, str, float], Substitutes],
    now: float,
) -> str | None:
    """Queue what `sink` rejected for the first substitute that has not got it; return that one.

    An update, a correction, or the end of a case of which the sink has a message, concerns no other
    receiver.
    """
    is_end = entry.reason == _RESOLVED
    if entry.reason in (_UPDATED, _CORRECTED) or (
        is_end and _has_message(connection, sink, entry.incident)
    ):
        return None
    try:
        notification = notification_codec.decode(entry.notification_json)
    except notification_codec.UnreadableNotificationError:
        return None
    note = f"Sent here because the sink {sink!r} did not accept it."
    passed_on = replace(notification, notes=(*notification.notes, note))
    found = substitutes(notification, sink, now)
    order = [*found.admitting, *found.others]
    reached = [each for each in order if _sent_severities(connection, each, entry.incident)]
    # The end of a case, or of its run, goes to those that have the case.
    is_last = is_end or entry.reason == _ENDED
    groups = (reached,) if is_last and reached else (found.admitting, found.others)
    for group in groups:
        having = [each for each in group if _has_notification(connection, each, entry)]
        for each in group:
            if each not in having and enqueue(connection, passed_on, [each], now, found.rules):
                return each
        if having:
            return None
    return None


def _has_notification(connection: sqlite3.Connection, sink: str, entry: OutboxEntry) -> bool:
    """Whether the sink has the case of the entry at that severity, or its end, or will get it."""
    sent = _sent_severities(connection, sink, entry.incident)
    if entry.reason == _RESOLVED:
        return _RESOLVED in sent
    order = Severity(entry.severity).order
    return any(
        Severity(severity).order <= order
        for reason, severity in sent.items()
        if reason in (_OPENED, _ESCALATED)
    )


def _sent_severities(connection: sqlite3.Connection, sink: str, incident: str) -> dict[str, str]:
    """The severities by reason of the notifications of a case that the sink did not reject."""
    query = (
        "select reason, severity from outbox where incident = ? and sink = ? and state != 'dead'"
        " order by rowid"
    )
    return dict(connection.execute(query, (incident, sink)).fetchall())


def _has_message(connection: sqlite3.Connection, sink: str, incident: str) -> bool:
    query = "select 1 from outbox where incident = ? and sink = ? and state = 'delivered'"
    return connection.execute(query, (incident, sink)).fetchone() is not None


def _may_have_message(connection: sqlite3.Connection, sink: str, incident: str) -> bool:
    """Whether the receiver accepted a message of the case, or may have without an answer."""
    query = (
        "select 1 from outbox where incident = ? and sink = ?"
        " and (state in ('delivered', 'sending') or unanswered > 0)"
    )
    return connection.execute(query, (incident, sink)).fetchone() is not None


def count_by_state(connection: sqlite3.Connection) -> dict[tuple[str, str], int]:
    """Number of rows by sink and state."""
    rows = connection.execute("select sink, state, count(*) from outbox group by sink, state")
    return {(sink, state): number for sink, state, number in rows}


def count_undelivered(connection: sqlite3.Connection, sinks: Iterable[str]) -> int:
    """Number of notifications of these sinks that may still be delivered."""
    counts = count_by_state(connection)
    states = ("queued", "withheld", "sending")
    return sum(counts.get((sink, state), 0) for sink in sinks for state in states)


def deliveries_of(connection: sqlite3.Connection, sink: str, incident: str) -> list[DeliveryRow]:
    """The notifications of an incident for one sink, oldest first."""
    rows = connection.execute(
        "select reason, state, last_error, next_at, finished_at from outbox"
        " where sink = ? and incident = ? order by rowid",
        (sink, incident),
    )
    return [DeliveryRow(*row) for row in rows]


def has_untried(connection: sqlite3.Connection, sinks: Iterable[str], until: float) -> bool:
    """Whether a notification of these sinks is being sent, or is due for its first try by `until`.

    `until` is in epoch seconds.
    """
    rows = connection.execute(
        "select distinct sink from outbox"
        " where state = 'sending' or (state = 'queued' and tries = 0 and next_at <= ?)",
        [until],
    )
    return not {sink for (sink,) in rows}.isdisjoint(sinks)


def delivery_problems(connection: sqlite3.Connection) -> list[DeliveryProblem]:
    """The sinks whose receiver accepted nothing since it did not accept a notification."""
    rows = connection.execute(
        "with accepted as (select sink, max(finished_at) as time from outbox"
        "  where state = 'delivered' group by sink)"
        " select outbox.sink, state, last_error, coalesce(finished_at, created) as since"
        " from outbox left join accepted on accepted.sink = outbox.sink"
        " where (state in ('queued', 'sending') and tries > 0 and last_error != '')"
        "  or (state = 'dead' and finished_at > coalesce(accepted.time, 0))"
        " order by outbox.sink, since"
    ).fetchall()
    problems = []
    for sink, group in groupby(rows, key=lambda row: row[0]):
        states, errors, times = zip(*(row[1:] for row in group), strict=True)
        given_up = states.count("dead")
        problems.append(
            DeliveryProblem(sink, given_up, len(states) - given_up, errors[-1], times[0])
        )
    return problems
