"""The agent's one SQLite file, its schema and the migrations from earlier schemas.

Ring positions, journal, detector state, history and outbox commit in one transaction. Input is
therefore processed once, and a notification is stored exactly when its cause is stored.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal

from sentinel.store import migrations

log = logging.getLogger(__name__)

_SCHEMA_SQL = """
create table if not exists ring(
    path text primary key, position integer not null, sequence integer not null,
    names text not null);
create table if not exists journal(
    id integer primary key, records blob not null);
create table if not exists snapshot(
    id integer primary key check(id = 1), state text not null);
create table if not exists layout(
    id integer primary key autoincrement, body text not null unique);
create table if not exists step(
    id integer primary key, attempt integer not null, step integer not null, time real not null,
    event text not null, layout integer not null, vals blob not null);
create index if not exists step_by_event on step(event, step) where event <> 'step';
create index if not exists step_by_layout on step(layout);
create table if not exists block(
    id integer primary key, level integer not null, attempt integer not null,
    event text not null, count integer not null, first_id integer not null,
    first_step integer not null, step integer not null, first_time real not null,
    time real not null, layout integer not null, vals blob not null);
create index if not exists block_by_level on block(level);
create index if not exists block_by_layout on block(layout);
create index if not exists block_by_first_id on block(event, first_id);
create table if not exists thinning(
    id integer primary key check(id = 1), next_id integer not null);
create table if not exists metadata(
    key text not null, rank integer not null, text text, number real,
    attempt integer not null, step integer not null, time real not null,
    primary key(key, rank));
create view if not exists run_metadata as
    select key, coalesce(text, number) as value, attempt, step, time from metadata where rank = -1;
create table if not exists sample(
    id integer primary key, attempt integer not null, step integer not null, rank integer not null,
    time real not null, vals text not null, attributes text not null);
create index if not exists sample_by_step on sample(step);
create table if not exists sample_file(
    path text primary key, mark text not null);
create table if not exists incident(
    name text primary key, detector text not null, state text not null, severity text not null,
    onset_step integer not null, opened_step integer not null, opened_time real not null,
    resolved_step integer, resolved_time real, body text not null);
create table if not exists case_history(
    name text primary key, state text not null, cause text, opened_time real not null,
    body text not null, notification text not null default '');
create table if not exists threshold(
    id integer primary key, detector text not null, signal text not null,
    attempt integer not null, step integer not null, time real not null, value real not null);
create table if not exists media(
    id integer primary key, name text not null, step integer not null, time real not null,
    kind text not null, content_type text not null, width integer, height integer,
    source text, offset integer, length integer, body blob);
create table if not exists outbox(
    key text primary key, sink text not null, notification text not null, state text not null,
    severity text not null, tries integer not null default 0, created real not null,
    next_at real not null, last_error text not null default '',
    incident text not null default '', reason text not null default '',
    unanswered integer not null default 0, finished_at real, receipt text, digest text);
create index if not exists outbox_due on outbox(state, next_at);
create index if not exists outbox_by_incident on outbox(incident, sink);
create table if not exists sink_pause(
    sink text primary key, until real not null);
create table if not exists sink_address(
    sink text primary key, address text not null);
create table if not exists pending_notification(
    incident text primary key, notification text not null);
create table if not exists silence(
    id integer primary key, detector text not null, starts_at real not null, ends_at real not null,
    author text not null, comment text not null);
create table if not exists ack(
    incident text primary key, severity text not null, time real not null,
    author text not null, comment text not null);
create table if not exists feedback(
    case_name text primary key, mark text not null, time real not null,
    author text not null, comment text not null);
create table if not exists drawn_rows(
    id integer primary key, incident text not null, rank integer not null, step integer not null,
    drawn integer not null, indices blob not null, losses blob not null, gap text not null);
create index if not exists drawn_rows_by_incident on drawn_rows(incident);
create table if not exists command(
    incident text primary key, number integer, attempt integer, ready_from_index integer,
    due_step_index integer, step integer, actions text, cause text, refusal text);
create table if not exists spool(
    id integer primary key autoincrement, number integer not null, records blob not null);
create table if not exists node(
    name text primary key, spool text not null, row integer not null, sequences blob not null,
    state text not null);
create table if not exists cluster(
    key text primary key, value text not null);
"""

MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (
    migrations.migrate_from_0_1_0,
    migrations.migrate_to_coalesced_outbox,
    migrations.migrate_to_packed_history,
    migrations.migrate_to_run_pages,
    migrations.migrate_to_one_onset,
    migrations.migrate_to_sink_addresses,
    migrations.migrate_to_feedback,
    migrations.migrate_to_drawn_rows,
)
"""Migration n, counted from 1, takes a database from schema version 8 + n to 9 + n."""

FIRST_SCHEMA_VERSION = 9
"""`pragma user_version` of a database of 0.1.0, the first release."""

SCHEMA_VERSION = FIRST_SCHEMA_VERSION + len(MIGRATIONS)


MAX_WAIT_SECONDS = 10.0
"""How long a statement waits for the lock of another connection."""

_RETRY_SECONDS = 0.01
"""Interval at which a locked database is opened again."""

MAX_IDLE_WAL_BYTES = 4 << 20
"""Size to which the write-ahead log is cut after a larger transaction."""

_HEADER_BYTES, _READ_VERSION_OFFSET, _ROLLBACK_JOURNAL = 100, 19, b"\x01"
"""Of the format of SQLite files: where they state their journal."""

_INCREMENTAL_VACUUM = 2
"""Value of `pragma auto_vacuum` at which `pragma incremental_vacuum` returns pages to the disk."""


class NewerSchemaError(RuntimeError):
    """A later version of sentinel wrote the file."""


class UnsupportedSchemaError(sqlite3.DatabaseError):
    """A version of sentinel before 0.1.0 wrote the file; no migration exists for it."""


def connect(
    path: Path, journal_mode: Literal["wal", "delete"] | None = "wal"
) -> sqlite3.Connection:
    """Open the database for the calling thread, create or migrate it; autocommit until `begin`.

    The write-ahead log needs mapped memory, which a file server does not have. Without a
    `journal_mode` that of the file stays: changing it waits for other connections. Raises
    NewerSchemaError if a later version of sentinel wrote it, and sqlite3.DatabaseError if it is not
    a database, has no migration to the current schema, or stays locked for `MAX_WAIT_SECONDS`.
    """
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while True:
        try:
            return _open(path, journal_mode)
        except sqlite3.OperationalError as error:
            # SQLite does not wait when two connections change the journal mode at once.
            is_busy = str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_BUSY")
            if not is_busy or time.monotonic() >= deadline:
                raise
        time.sleep(_RETRY_SECONDS)


def _open(path: Path, journal_mode: Literal["wal", "delete"] | None) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=MAX_WAIT_SECONDS, isolation_level=None)
    try:
        version = _schema_version(connection)
        # Before anything is written to a file that a later version wrote.
        _check_version(version, path)
        if version == 0:
            # Before the first page is written: later, only `vacuum` can change it.
            connection.execute("pragma auto_vacuum=incremental")
        if journal_mode is not None:
            connection.execute(f"pragma journal_mode={journal_mode}")
        connection.execute(f"pragma journal_size_limit={MAX_IDLE_WAL_BYTES}")
        connection.execute("pragma synchronous=normal")
        if _schema_version(connection) != SCHEMA_VERSION:
            with transaction(connection, mode="immediate"):
                _create_or_migrate(connection, path)
            _make_shrinkable(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def read_only_uri(path: Path) -> str:
    """URI of a database that no process writes, such that closing it leaves its files as they are.

    Closing a connection that may write moves the write-ahead log into the database.
    """
    if not _log_path(path).exists():
        return f"{path.absolute().as_uri()}?immutable=1"
    # A read-only connection cannot create the index of the log, but needs no content of it.
    with suppress(OSError):
        path.with_name(f"{path.name}-shm").touch(exist_ok=False)
    return f"{path.absolute().as_uri()}?mode=ro"


def connect_read_only(path: Path) -> sqlite3.Connection:
    """A connection that only reads, of any thread, and writes no file of a run that has ended.

    Raises FileNotFoundError if there is no database or an empty one, and NewerSchemaError if a
    later version wrote it. One of an earlier version is migrated.
    """
    # A file without a write-ahead log may be written at any time.
    is_logged = _log_path(path).exists() or not _has_rollback_journal(path)
    uri = read_only_uri(path) if is_logged else f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, timeout=10.0, isolation_level=None)
    try:
        version = _schema_version(connection)
    except sqlite3.OperationalError as error:
        connection.close()
        if getattr(error, "sqlite_errorname", "") != "SQLITE_READONLY_ROLLBACK":
            raise
        # A killed process left a part of a transaction, which only a writer can undo.
        connect(path, None).close()
        return connect_read_only(path)
    except BaseException:
        connection.close()
        raise
    if version != SCHEMA_VERSION:
        connection.close()
        _check_version(version, path)
        if version == 0:
            raise FileNotFoundError(errno.ENOENT, "There is no data yet", str(path))
        connect(path).close()
        return connect_read_only(path)
    return connection


def wait_for_commit(path: Path) -> None:
    """Wait until the transaction is over that another connection may have begun.

    Raises sqlite3.Error, also if there is no database, or `MAX_WAIT_SECONDS` have passed.
    """
    uri = f"{path.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=MAX_WAIT_SECONDS, isolation_level=None)
    with closing(connection):
        connection.execute("begin immediate")
        connection.execute("rollback")


def change_mark(path: Path) -> object:
    """Size and time of the files that change with the database; of one that is gone, nothing."""
    marks: list[tuple[int, int]] = []
    for each in (path, _log_path(path)):
        with suppress(OSError):
            status = each.stat()
            marks.append((status.st_mtime_ns, status.st_size))
    return tuple(marks)


def _log_path(path: Path) -> Path:
    """The write-ahead log of the database, which exists while a process has it open."""
    return path.with_name(f"{path.name}-wal")


def _has_rollback_journal(path: Path) -> bool:
    """Whether the file states that it is written without a write-ahead log.

    Only for one that this process has not opened with SQLite: closing any descriptor of a file
    gives up all locks of the process on it, and the next process to leave would delete the log.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    return header[_READ_VERSION_OFFSET:][:1] == _ROLLBACK_JOURNAL


def _create_or_migrate(connection: sqlite3.Connection, path: Path) -> None:
    # Read again within the transaction: another process may have migrated the file meanwhile.
    version = _schema_version(connection)
    _check_version(version, path)
    if 0 < version < FIRST_SCHEMA_VERSION:
        message = f"{path} has schema version {version}, from before sentinel 0.1.0."
        raise UnsupportedSchemaError(message)
    if version == 0:
        migrations.execute_script(connection, _SCHEMA_SQL)
    else:
        for migrate in MIGRATIONS[version - FIRST_SCHEMA_VERSION :]:
            migrate(connection)
        if version < SCHEMA_VERSION:
            log.info("Migrated %s from schema %d to %d", path, version, SCHEMA_VERSION)
    connection.execute(f"pragma user_version={SCHEMA_VERSION}")


def _make_shrinkable(connection: sqlite3.Connection, path: Path) -> None:
    """Rewrite a database of an earlier version, so that it can return pages to the disk."""
    (mode,) = connection.execute("pragma auto_vacuum").fetchone()
    if mode == _INCREMENTAL_VACUUM:
        return
    try:
        connection.execute("pragma auto_vacuum=incremental")
        connection.execute("vacuum")
    except sqlite3.OperationalError as error:
        # Another process uses it, or the disk has no room for a copy.
        log.warning("%s cannot be rewritten (%s): it will not become smaller", path, error)


def _check_version(version: int, path: Path) -> None:
    if version > SCHEMA_VERSION:
        message = (
            f"{path} has schema version {version}; this version of sentinel supports versions up"
            f" to {SCHEMA_VERSION}. Upgrade sentinel."
        )
        raise NewerSchemaError(message)


def _schema_version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("pragma user_version").fetchone()
    return int(version)


@contextmanager
def transaction(
    connection: sqlite3.Connection, mode: Literal["deferred", "immediate"] = "deferred"
) -> Iterator[None]:
    """Commit everything written within the context, or, if it raises, nothing.

    `immediate` takes the write lock at once, `deferred` at the first write.
    """
    connection.execute(f"begin {mode}")
    try:
        yield
    except BaseException:
        _roll_back(connection)
        raise
    try:
        connection.execute("commit")
    except sqlite3.Error:
        _roll_back(connection)
        raise


def _roll_back(connection: sqlite3.Connection) -> None:
    # SQLite rolls back by itself after some errors; an error here must not hide the first one.
    with suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("rollback")
