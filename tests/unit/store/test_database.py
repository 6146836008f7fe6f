"""Tests of the database file: its schema, its versions and the migration from 0.1.0."""

from __future__ import annotations

import json
import math
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, suppress
from dataclasses import replace

import pytest

from sentinel.model.notification import NotificationReason
from sentinel.model.record import Event, RankMismatch, Spread
from sentinel.notify import outbox
from sentinel.store import cases, commands, database, notification_codec, silences
from sentinel.store.database import (
    FIRST_SCHEMA_VERSION,
    SCHEMA_VERSION,
    NewerSchemaError,
    UnsupportedSchemaError,
    connect,
    connect_read_only,
    transaction,
)
from sentinel.store.history import History
from sentinel.store.journal import Journal
from sentinel.store.run_metadata import RunMetadataStore
from sentinel.store.samples import SampleStore
from sentinel.transport.command_page import Command

SCHEMA_0_1_0 = """
create table ring(
    path text primary key, position integer not null, sequence integer not null,
    names text not null);
create table input(
    id integer primary key, records blob not null);
create table snapshot(
    one integer primary key check(one = 1), state text not null);
create table step(
    id integer primary key, attempt integer not null, step integer not null, time real not null,
    event text not null, vals text not null, spread text not null, facts text not null);
create index step_by_step on step(step);
create table fact(
    key text not null, rank integer not null, text text, number real,
    attempt integer not null, step integer not null, time real not null,
    primary key(key, rank));
create view facts as
    select key, coalesce(text, number) as value, attempt, step, time from fact where rank = -1;
create table sample(
    id integer primary key, attempt integer not null, step integer not null, rank integer not null,
    time real not null, vals text not null, facts text not null);
create index sample_by_step on sample(step);
create table sample_file(
    path text primary key, mark text not null);
create table incident(
    name text primary key, detector text not null, state text not null, severity text not null,
    onset_step integer not null, opened_step integer not null, opened_time real not null,
    resolved_step integer, resolved_time real, body text not null);
create table told(
    name text primary key, state text not null, cause text, opened_time real not null,
    body text not null);
create table outbox(
    key text primary key, sink text not null, page text not null, state text not null,
    severity text not null, tries integer not null default 0, created real not null,
    next_at real not null, last_error text not null default '');
create table silence(
    id integer primary key, detector text not null, begins real not null, ends real not null,
    who text not null, why text not null);
create table ack(
    incident text primary key, severity text not null, time real not null,
    who text not null, why text not null);
create table owed(
    incident text primary key, page text not null);
create table onset(
    incident text primary key, step integer not null, earliest integer not null,
    latest integer not null, last_good integer);
create table request(
    incident text primary key, number integer, attempt integer, since integer, beat integer,
    step integer, deeds text, cause text);
create table spool(
    id integer primary key autoincrement, number integer not null, records blob not null);
create table node(
    name text primary key, spool text not null, row integer not null, heard blob not null,
    told text not null);
create table cluster(
    key text primary key, value text not null);
create index outbox_due on outbox(state, next_at);
pragma user_version=9;
"""
"""The schema as version 0.1.0 created it."""

NAME = "run/kl_blowup#1"
NOW = 1_700_000_000.0

DIAGNOSIS = {
    "cause": "policy_collapse",
    "title": "policy collapse",
    "confidence": 0.826,
    "severity": "critical",
    "evidence": [{"weight": 0.5, "text": "KL is 2 nats.", "step": 86}],
    "remedy": "Go back.",
    "last_good_step": 80,
}

NOTIFICATION_0_1_0 = {
    "episode": NAME,
    "page": {
        "reason": "worsened",
        "incident": {
            "key": {"run": "run", "rank": -1, "detector": "kl_blowup"},
            "episode": 1,
            "severity": "critical",
            "signal": "kl_ref",
            "remedy": "Stop.",
            "finding": {
                "summary": "KL is 2 nats.",
                "evidence": {"kl": 2.0},
                "severity": None,
                "onset_step": None,
                "rank": None,
            },
            "onset_step": 90,
            "opened_step": 100,
            "opened_time": NOW,
            "state": "firing",
            "resolved_step": None,
            "resolved_time": None,
            "findings": 3,
            "calm": 2,
            "flaps": 0,
            "last_good_step": None,
        },
        "step": 120,
        "time": NOW + 60,
        "notes": ["note"],
        "diagnosis": DIAGNOSIS,
        "others": [],
    },
}

CASE_0_1_0 = {
    "name": NAME,
    "run": "run",
    "subject": "policy collapse",
    "severity": "critical",
    "onset_step": 86,
    "opened_step": 100,
    "opened_time": NOW,
    "resolved_step": None,
    "remedy": "Go back.",
    "last_good_step": 80,
    "incidents": [NAME],
    "diagnosis": DIAGNOSIS | {"belief": "likely, 83 %"},
}

INCIDENT_0_1_0 = {
    "name": NAME,
    "run": "run",
    "detector": "kl_blowup",
    "state": "firing",
    "severity": "critical",
    "episode": 1,
}

ROWS_0_1_0 = {
    "ring": [("/a.ring", 64, 2, '[{}, "", 0.0]')],
    "input": [(1, b"packed by 0.1.0")],
    "snapshot": [(1, "state of 0.1.0")],
    "step": [
        (1, 0, 4, NOW, "tick", '{"host_cpu": 0.5}', "{}", "{}"),
        (2, 0, 4, NOW, "facts", "{}", "{}", '{"framework": "trl"}'),
        (3, 0, 5, NOW, "step", '{"loss": 1.5}', "{}", '{"missing": "4"}'),
    ],
    "fact": [
        ("framework", -1, "trl", None, 0, 1, NOW),
        ("tap/trl", 0, "on", None, 0, 1, NOW),
    ],
    "sample": [(1, 0, 5, 0, NOW, '{"reward": 0.5}', '{"prompt": "p", "completion": "c"}')],
    "incident": [
        (NAME, "kl_blowup", "firing", "critical", 90, 100, NOW, None, None, INCIDENT_0_1_0)
    ],
    "told": [(NAME, "firing", "policy_collapse", NOW, CASE_0_1_0)],
    "outbox": [
        ("key", "slack", NOTIFICATION_0_1_0, "queued", "critical", 1, NOW, NOW, "HTTP 500"),
        ("damaged", "webhook", "no json", "queued", "critical", 0, NOW, NOW, ""),
    ],
    "silence": [(1, "kl_blowup", NOW, NOW + 60, "ana", "known")],
    "ack": [(NAME, "critical", NOW, "bo", "mine")],
    "owed": [(NAME, NOTIFICATION_0_1_0)],
    "onset": [(NAME, 120, 118, 122, 99)],
    "request": [(NAME, 1, 0, 20, 30, 30, "checkpoint stop", "policy collapse")],
    "spool": [(1, 1, b"packed by 0.1.0")],
    "node": [("node-b", "spool", 1, b"", "{}")],
    "cluster": [("address", "10.0.0.1:29400"), ("generations", "{}"), ("spool", "0123abcd")],
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sentinel.db"


@pytest.fixture
def migrated(path):
    """A database of 0.1.0 with a row in each table, opened by this version."""
    create_database_0_1_0(path)
    with closing(connect(path)) as connection:
        yield connection


def create_database_0_1_0(path):
    with closing(sqlite3.connect(path)) as old:
        old.executescript(SCHEMA_0_1_0)
        for table, rows in ROWS_0_1_0.items():
            for row in rows:
                values = [json.dumps(each) if isinstance(each, dict) else each for each in row]
                old.execute(f"insert into {table} values({', '.join('?' * len(row))})", values)
        old.commit()


def schema(connection):
    """Columns by table, view and index."""
    names = connection.execute("select name from sqlite_master where type <> 'trigger'").fetchall()
    return {
        name: [tuple(column)[1:] for column in connection.execute(f"pragma table_xinfo('{name}')")]
        for (name,) in names
    }


@pytest.mark.fault("A12")
def test_a_database_of_a_later_version_is_refused_with_a_remedy(path):
    connect(path).execute(f"pragma user_version={SCHEMA_VERSION + 1}")

    with pytest.raises(NewerSchemaError, match="Upgrade sentinel"):
        connect(path)


def test_a_database_from_before_the_first_release_is_refused(path):
    """The agent sets such a file aside, as it does with any database it cannot read."""
    with closing(sqlite3.connect(path)) as old:
        old.execute(f"pragma user_version={FIRST_SCHEMA_VERSION - 1}")

    with pytest.raises(UnsupportedSchemaError, match="has schema version 8"):
        connect(path)


@pytest.mark.fault("A12")
def test_a_migrated_database_has_the_schema_of_a_new_one(migrated, tmp_path):
    with closing(connect(tmp_path / "new.db")) as new:
        assert schema(migrated) == schema(new)
    assert migrated.execute("pragma user_version").fetchone() == (SCHEMA_VERSION,)
    assert migrated.execute("pragma integrity_check").fetchone() == ("ok",)


def test_migration_keeps_history_incidents_and_cases(migrated):
    history = History(migrated)
    *others, record = history.records("run")
    (incident,) = history.incidents()

    assert (record.event, record.step, dict(record.values)) == (Event.STEP, 5, {"loss": 1.5})
    assert record.attributes == {"missing": "4"}
    assert [each.event for each in others] == [Event.HEARTBEAT, Event.METADATA]
    assert incident["case"] == NAME
    assert incident["diagnosis"] == DIAGNOSIS | {"confidence_text": "likely, 83 %"}
    assert cases.cases_by_incident(migrated)[NAME]["subject"] == "policy collapse"
    assert [sample["completion"] for sample in SampleStore(migrated).newest()] == ["c"]


def test_migration_gives_a_case_its_newest_notification(migrated):
    (case,) = cases.all_cases(migrated, NOW + 60, pytest.fail)

    assert case["name"] == NAME
    assert case["message"]["facts"] == ("Step 86: KL is 2 nats.",)
    assert case["detector"] == "kl_blowup"


def test_migration_to_packed_rows_keeps_every_value_exactly(path):
    """A history of schema 11, with what float64 can hold, of one rank and of eight."""
    values = [0.1, 1 / 3, -0.0, 5e-324, 1.7976931348623157e308, 3, math.inf, math.nan]
    spread = [8, 1 / 3, 0.1, 0.7, 8 / 3, 0.2, 4, 6, []]
    single, bad = [1, 0.1, 0.1, 0.1, 0.1, 0.0, 2, 2, []], [7, 1.0, 1.0, 1.0, 7.0, 0.0, 0, 0, [3]]
    mismatch = [*bad[:8], [], [0.5, 1, [[3, 0.7]]]]
    spreads = {"a": spread, "v0": single, "bad": bad, "rate": mismatch}
    named = {f"v{at}": value for at, value in enumerate(values)} | {"a": 1 / 3, "bad": 1.0}
    create_database_0_1_0(path)
    with closing(sqlite3.connect(path)) as old:
        row = (2, 6, NOW + 0.1, "step", json.dumps(named), json.dumps(spreads), '{"loss": "l"}')
        insert = "insert into step(attempt, step, time, event, vals, spread, facts)"
        old.execute(f"{insert} values(?, ?, ?, ?, ?, ?, ?)", row)
        old.execute(f"{insert} values(0, 7, 1.0, 'step', 'no json', '', '')")
        old.commit()

    with closing(connect(path)) as connection:
        *_, record = History(connection).records("run")
    assert repr(dict(record.values)) == repr({name: float(v) for name, v in named.items()})
    assert (record.attempt, record.step, record.time) == (2, 6, NOW + 0.1)
    assert record.attributes == {"loss": "l"}
    assert dict(record.spread) == {
        "a": replace(record.spread["a"], count=8, mean=1 / 3, min=0.1, max=0.7, max_rank=6),
        "v0": Spread(1, 0.1, 0.1, 0.1, 0.1, 0.0, 2, 2),
        "bad": Spread(7, 1.0, 1.0, 1.0, 7.0, 0.0, 0, 0, (3,)),
        "rate": Spread(7, 1.0, 1.0, 1.0, 7.0, 0.0, 0, 0, (), RankMismatch(0.5, 1, ((3, 0.7),))),
    }


def test_a_migrated_database_returns_pages_to_the_disk(migrated):
    assert migrated.execute("pragma auto_vacuum").fetchone() == (2,)


def test_migration_keeps_the_metadata_and_renames_patch_states(migrated):
    store = RunMetadataStore(migrated)

    assert store.as_dict() == {"framework": "trl"}
    assert store.patch_states == {("patch/trl", 0): "on"}
    assert migrated.execute("select key, value from run_metadata").fetchall() == [
        ("framework", "trl")
    ]


@pytest.mark.fault("A12")
def test_migration_keeps_undelivered_and_pending_notifications(migrated):
    entry = outbox.claim(migrated, "slack", NOW)
    (pending,) = migrated.execute("select notification from pending_notification").fetchone()

    assert (entry.key, entry.tries, entry.last_error) == ("key", 2, "HTTP 500")
    for text in (entry.notification_json, pending):
        notification = notification_codec.decode(text)
        assert notification.reason is NotificationReason.ESCALATED
        assert notification.incident.name == NAME
        assert (notification.incident.finding_count, notification.incident.clear_count) == (3, 2)
        assert notification.diagnosis.confidence_text == "likely, 83 %"


def test_migration_leaves_a_damaged_row_as_it_is(migrated):
    assert outbox.claim(migrated, "webhook", NOW).notification_json == "no json"


def test_migration_keeps_silences_acknowledgements_and_commands(migrated):
    (silence,) = silences.active_silences(migrated, NOW)
    ack = silences.load_acks(migrated)[NAME]

    assert (silence.detector, silence.ends_at, silence.author) == ("kl_blowup", NOW + 60, "ana")
    assert (ack.author, ack.comment) == ("bo", "mine")
    assert commands.latest_command(migrated) == commands.PlannedCommand(
        Command(1, 20, 30, frozenset({"checkpoint", "stop"}), NAME, "policy collapse"), 0, 30
    )


def test_migration_drops_what_only_0_1_0_can_decode(migrated):
    """Journal, spool and nodes are encoded; ring positions stay, so that no record repeats."""
    journal = Journal(migrated)

    assert list(journal.entries_since_snapshot("run")) == []
    assert journal.load_snapshot() == '""'
    assert list(journal.positions()) == ["/a.ring"]
    for table in ("spool", "node"):
        assert migrated.execute(f"select count(*) from {table}").fetchone() == (0,)


def test_migration_renames_the_keys_of_the_cluster(migrated):
    assert dict(migrated.execute("select key, value from cluster")) == {
        "address": "10.0.0.1:29400",
        "attempt_map": "{}",
        "spool_id": "0123abcd",
    }


@pytest.mark.fault("A12")
def test_concurrent_processes_migrate_once(path):
    create_database_0_1_0(path)
    versions, start = [], threading.Barrier(4)

    def open_database():
        start.wait()
        with closing(connect(path)) as connection:
            versions.append(connection.execute("pragma user_version").fetchone()[0])

    threads = [threading.Thread(target=open_database) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert versions == [SCHEMA_VERSION] * 4


@pytest.mark.fault("A12")
def test_a_failed_migration_changes_nothing(path, monkeypatch):
    create_database_0_1_0(path)

    def fail(connection):
        connection.execute("drop table told")
        raise sqlite3.OperationalError("disk full")

    monkeypatch.setattr("sentinel.store.database.MIGRATIONS", (fail,))
    with pytest.raises(sqlite3.OperationalError, match="disk full"):
        connect(path)

    with closing(sqlite3.connect(path)) as old:
        assert old.execute("select count(*) from told").fetchone() == (1,)
        assert old.execute("pragma user_version").fetchone() == (FIRST_SCHEMA_VERSION,)


def test_a_transaction_commits_everything_or_nothing(path):
    with closing(connect(path)) as connection:
        with suppress(KeyError), transaction(connection):
            connection.execute("insert into cluster values('a', '1')")
            raise KeyError
        assert connection.execute("select count(*) from cluster").fetchone() == (0,)

        with transaction(connection):
            connection.execute("insert into cluster values('a', '1')")
        assert connection.execute("select count(*) from cluster").fetchone() == (1,)


def test_opening_a_database_writes_nothing(path):
    """The page and every command open it while the agent writes."""
    with closing(connect(path)) as connection, transaction(connection, mode="immediate"):
        connection.execute("insert into cluster values('a', '1')")
        with closing(connect(path)) as other:
            assert other.execute("select count(*) from cluster").fetchone() == (0,)
            assert other.execute("pragma auto_vacuum").fetchone() == (2,)


def test_opening_is_tried_again_if_another_process_opens_the_file(path, monkeypatch):
    """SQLite does not wait when two connections change the journal mode at once."""
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorname = "SQLITE_BUSY"
    results, opens = iter([error, error]), database._open

    def open_after_two_errors(*arguments):
        for raised in results:
            raise raised
        return opens(*arguments)

    monkeypatch.setattr(database, "_open", open_after_two_errors)
    with closing(connect(path)) as connection:
        assert History(connection).incidents() == []


def test_a_reader_of_an_agent_gives_up_none_of_its_locks(path):
    """Else the next process that closes the database deletes the log, with what is stored there."""
    opened = "import sys; from pathlib import Path; from sentinel.store.database import connect"
    with closing(connect(path)) as agent:
        connect_read_only(path).close()
        program = [sys.executable, "-c", f"{opened}; connect(Path(sys.argv[1])).close()", str(path)]
        subprocess.run(program, check=True, timeout=240)
        assert path.with_name(f"{path.name}-wal").exists()
        agent.execute("insert into sink_pause values('slack', 1.0)")
        with closing(connect_read_only(path)) as reader:
            assert reader.execute("select count(*) from sink_pause").fetchall() == [(1,)]
