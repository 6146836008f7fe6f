"""A database as an agent leaves it, with rows in every table that decides what is notified."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from support.notifications import NOW, make_notification

from sentinel.model.finding import Severity
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.notify import outbox
from sentinel.pipeline.engine import Result
from sentinel.store import silences
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.store.journal import Journal
from sentinel.transport.ring import ReadPosition, RingCursor

STEPS = 600
SENT, QUEUED = 12, 4


def write_run(path: Path) -> None:
    """Write the database of a run of `STEPS` steps, without a write-ahead log."""
    with closing(connect(path)) as connection:
        history, journal = History(connection), Journal(connection)
        connection.execute("begin")
        for step in range(1, STEPS + 1):
            record = Record(
                "run", WHOLE_RUN, step, NOW + step, Event.STEP, {"loss": 2.0 + step / 7}, attempt=0
            )
            history.update(Result(record))
        for episode in range(1, SENT + QUEUED + 1):
            notification = make_notification(episode=episode)
            outbox.enqueue(connection, notification, ["webhook"], NOW)
            heartbeat = Record("run", WHOLE_RUN, STEPS, NOW + STEPS, Event.HEARTBEAT)
            history.update(Result(heartbeat, notifications=(notification,)))
            if episode <= SENT:
                key = outbox.idempotency_key(notification, "webhook")
                outbox.mark_delivered(connection, key, NOW)
        silences.add_silence(connection, silences.Silence("kl_drift", NOW, NOW + 60.0, "ana"))
        connection.execute(
            "insert into ack values(?, ?, ?, 'ana', '')",
            ("grpo-7b/kl_blowup#1", Severity.CRITICAL.value, NOW),
        )
        journal.store_snapshot('{"state": "' + 60_000 * "a" + '"}')
        journal.append([record])
        journal.store_positions({"0-0.ring": ReadPosition(RingCursor(4096, 9), {})})
        connection.execute("commit")
        connection.execute("pragma wal_checkpoint(truncate)").fetchall()


def sent_keys(path: Path) -> set[str]:
    """The keys of notifications that the database does not send again."""
    query = "select key from outbox where state not in ('queued', 'withheld', 'sending')"
    with closing(sqlite3.connect(path)) as connection:
        return {str(key) for (key,) in connection.execute(query)}
