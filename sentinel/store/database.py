"""Database: the agent's one SQLite file. Everything that must survive a kill is in it.

Ring offsets, journal, detector state, history and the outbox commit in one transaction, so input
is processed once and an alert exists exactly when its cause is stored.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCHEMA_VERSION = 9

_SCHEMA_SQL = """
create table if not exists ring(
    path text primary key, position integer not null, sequence integer not null,
    names text not null);
create table if not exists input(
    id integer primary key, records blob not null);
create table if not exists snapshot(
    one integer primary key check(one = 1), state text not null);
create table if not exists step(
    id integer primary key, attempt integer not null, step integer not null, time real not null,
    event text not null, vals text not null, spread text not null, facts text not null);
create index if not exists step_by_step on step(step);
create table if not exists fact(
    key text not null, rank integer not null, text text, number real,
    attempt integer not null, step integer not null, time real not null,
    primary key(key, rank));
create view if not exists facts as
    select key, coalesce(text, number) as value, attempt, step, time from fact where rank = -1;
create table if not exists sample(
    id integer primary key, attempt integer not null, step integer not null, rank integer not null,
    time real not null, vals text not null, facts text not null);
create index if not exists sample_by_step on sample(step);
create table if not exists sample_file(
    path text primary key, mark text not null);
create table if not exists incident(
    name text primary key, detector text not null, state text not null, severity text not null,
    onset_step integer not null, opened_step integer not null, opened_time real not null,
    resolved_step integer, resolved_time real, body text not null);
create table if not exists told(
    name text primary key, state text not null, cause text, opened_time real not null,
    body text not null);
create table if not exists outbox(
    key text primary key, sink text not null, page text not null, state text not null,
    severity text not null, tries integer not null default 0, created real not null,
    next_at real not null, last_error text not null default '');
create table if not exists silence(
    id integer primary key, detector text not null, begins real not null, ends real not null,
    who text not null, why text not null);
create table if not exists ack(
    incident text primary key, severity text not null, time real not null,
    who text not null, why text not null);
create table if not exists owed(
    incident text primary key, page text not null);
create table if not exists onset(
    incident text primary key, step integer not null, earliest integer not null,
    latest integer not null, last_good integer);
create table if not exists request(
    incident text primary key, number integer, attempt integer, since integer, beat integer,
    step integer, deeds text, cause text);
create table if not exists spool(
    id integer primary key autoincrement, number integer not null, records blob not null);
create table if not exists node(
    name text primary key, spool text not null, row integer not null, heard blob not null,
    told text not null);
create table if not exists cluster(
    key text primary key, value text not null);
create index if not exists outbox_due on outbox(state, next_at);
"""


class NewerSchemaError(RuntimeError):
    """The file was written by a later version of sentinel."""


_VERSION_SPECIFIC_TABLES = ("input", "spool", "node")


def connect(path: Path) -> sqlite3.Connection:
    """Open (and create) the database for the calling thread; autocommit until `begin`.

    Raises NewerSchemaError if a later version of sentinel wrote it, sqlite3.DatabaseError if it
    is not a database.
    """
    connection = sqlite3.connect(path, timeout=10.0, isolation_level=None)
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=normal")
    (version,) = connection.execute("pragma user_version").fetchone()
    if version > SCHEMA_VERSION:
        connection.close()
        message = f"{path} has schema {version}, this sentinel knows {SCHEMA_VERSION}: upgrade it."
        raise NewerSchemaError(message)
    if version < SCHEMA_VERSION:
        # Only the version that packed these can read them.
        connection.executescript(
            "".join(f"drop table if exists {name};" for name in _VERSION_SPECIFIC_TABLES)
        )
        connection.executescript(_SCHEMA_SQL)
        connection.execute(f"pragma user_version={SCHEMA_VERSION}")
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is written within is kept, or, where anything is raised, none of it."""
    connection.execute("begin")
    try:
        yield
    except BaseException:
        connection.execute("rollback")
        raise
    connection.execute("commit")
