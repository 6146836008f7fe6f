"""Keys of sent notifications outlive the database, whatever becomes of their file."""

from __future__ import annotations

from contextlib import closing

import pytest

from sentinel.store import sent_log
from sentinel.store.database import connect
from sentinel.store.sent_log import SentLog

pytestmark = pytest.mark.fault("S10")


@pytest.fixture
def connection(tmp_path):
    with closing(connect(tmp_path / "sentinel.db")) as connection:
        yield connection


def rows(connection):
    return connection.execute("select key, state from outbox order by rowid").fetchall()


def test_what_was_sent_is_added_as_delivered_unless_it_is_known(tmp_path, connection):
    log = SentLog(tmp_path / "sent.jsonl")
    for key in ("a", "b"):
        log.append(key, "slack", "run/nan_or_inf#1", "opened")
    connection.execute(
        "insert into outbox(key, sink, notification, state, severity, created, next_at)"
        " values('a', 'slack', '{}', 'dead', 'critical', 1, 1)"
    )
    for _ in range(2):
        log.restore(connection)

    assert rows(connection) == [("a", "dead"), ("b", "delivered")]


def test_lines_that_are_no_rows_are_skipped(tmp_path, connection):
    log = SentLog(tmp_path / "sent.jsonl")
    log.restore(connection)
    log.append("a", "slack", "run/nan_or_inf#1", "opened")
    with (tmp_path / "sent.jsonl").open("ab") as file:
        file.write(b'\xff\n[]\n{}\n["b", 1, 2, 3]\n["c", "slack", "run/')
    log.restore(connection)

    assert rows(connection) == [("a", "delivered")]


def test_the_older_half_is_dropped_from_a_large_file(tmp_path, connection, monkeypatch):
    monkeypatch.setattr(sent_log, "MAX_BYTES", 1000)
    log = SentLog(tmp_path / "sent.jsonl")
    for number in range(100):
        log.append(str(number), "slack", "run/nan_or_inf#1", "opened")
        assert (tmp_path / "sent.jsonl").stat().st_size < 1100
    log.restore(connection)
    kept = [int(key) for key, _ in rows(connection)]

    assert kept == list(range(kept[0], 100))
    assert len(kept) >= 5


def test_a_directory_that_is_gone_is_no_error(tmp_path, connection):
    log = SentLog(tmp_path / "gone" / "sent.jsonl")
    log.append("a", "slack", "run/nan_or_inf#1", "opened")
    log.restore(connection)

    assert rows(connection) == []
