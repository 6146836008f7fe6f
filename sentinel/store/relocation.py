"""Moves the database of a run between the home directory and shared memory.

The copy in shared memory has the newest rows of the history only. Moved back, the rows that were
added there are appended to the history, and everything else replaces what the home directory has.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Literal

from sentinel.store import database
from sentinel.store.recovery import set_aside
from sentinel.store.storage_monitor import FailureKind, classify

log = logging.getLogger(__name__)

HISTORY_TABLES = ("step", "sample")
"""Tables to which rows are only appended, with a growing `id`."""
HOME_TABLES = ("block",)
"""Tables of the older history, which stay in the home directory."""
MAX_HISTORY_ROWS = 5000
"""Rows of a history table that are copied to shared memory: what the charts of the page show."""
MAX_SHARED_ROWS = 50_000
"""Newest records that stay in shared memory, however long the home directory cannot be used."""
TRIMMED_AT_ONCE = 500
_COMPANION_SUFFIXES = ("-wal", "-shm")
_TRIMMED_RANGE_SQL = """
select (select id from step where event in ('step', 'heartbeat') order by id limit 1), max(id)
from step
"""
_TRIM_SQL = """
delete from step where id in (
    select id from step where id < ? and event in ('step', 'heartbeat') order by id limit ?)
"""
_WITHOUT_HISTORY = "sentinel.db.begun-here"
"""Name of the empty file beside a database that does not continue the one in the home directory."""


def begin_in_fallback(target: Path) -> None:
    """Note that a database at `target` will not continue the one in the home directory."""
    (target.parent / _WITHOUT_HISTORY).touch(mode=0o600)


def copy_to_fallback(source: sqlite3.Connection, target: Path) -> None:
    """Copy the state, and the newest history, from an open database to a new file.

    The database of `source` may be full, read-only or deleted. Raises sqlite3.Error, OSError.
    """
    remove_database(target)
    database.connect(target).close()
    source.execute("attach database ? as fallback", (str(target),))
    try:
        with database.transaction(source):
            for table, columns in _shared_tables(source):
                rows = f"select {columns} from main.{table}"  # noqa: S608
                if table in HISTORY_TABLES:
                    rows += f" order by id desc limit {MAX_HISTORY_ROWS}"
                source.execute(f"delete from fallback.{table}")  # noqa: S608
                source.execute(f"insert into fallback.{table}({columns}) {rows}")
    except BaseException:
        remove_database(target)
        raise
    finally:
        source.execute("detach database fallback")


def trim_fallback(connection: sqlite3.Connection) -> None:
    """Delete the oldest steps and heartbeats in shared memory, some at each call.

    A file server has copies of them, unless it hangs.
    """
    oldest, newest = connection.execute(_TRIMMED_RANGE_SQL).fetchone()
    end = (newest or 0) + 1 - MAX_SHARED_ROWS
    if oldest is not None and end - oldest >= TRIMMED_AT_ONCE:
        connection.execute(_TRIM_SQL, (end, TRIMMED_AT_ONCE))


def copy_unopened_to_fallback(source: Path, target: Path) -> None:
    """`copy_to_fallback` of a database that no process writes, on a full or read-only disk.

    Raises FileNotFoundError if there is none, else OSError or sqlite3.Error.
    """
    if not source.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))
    uri = database.read_only_uri(source)
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        (version,) = connection.execute("pragma user_version").fetchone()
        if version != database.SCHEMA_VERSION:
            raise database.UnsupportedSchemaError(f"{source} has schema version {version}.")
        copy_to_fallback(connection, target)


def merge_into_home(
    fallback: Path, home: Path, journal_mode: Literal["wal", "delete"] = "wal"
) -> None:
    """Bring the database in the home directory up to date, in one transaction.

    It is created if missing; one that cannot be read is set aside, and a new one begun. The one in
    shared memory may be in use. Raises sqlite3.Error, OSError.
    """
    mark = fallback.parent / _WITHOUT_HISTORY
    if mark.exists():
        if home.exists():
            set_aside(home)
        mark.unlink()
    try:
        _merge(fallback, home, journal_mode)
    except (sqlite3.Error, database.NewerSchemaError) as error:
        if not _is_unreadable(home, journal_mode):
            raise
        moved = set_aside(home)
        log.warning("The database in the home directory cannot be read (%s): see %s", error, moved)
        _merge(fallback, home, journal_mode)


def _is_unreadable(path: Path, journal_mode: Literal["wal", "delete"]) -> bool:
    """Whether the database is damaged, or a later version of sentinel wrote it."""
    try:
        with closing(database.connect(path, journal_mode)) as connection:
            ((found,),) = connection.execute("pragma quick_check(1)").fetchall()
    except database.NewerSchemaError:
        return True
    except sqlite3.Error as error:
        return classify(error) is FailureKind.DAMAGED
    return bool(found != "ok")


def _merge(fallback: Path, home: Path, journal_mode: Literal["wal", "delete"]) -> None:
    with closing(database.connect(home, journal_mode)) as connection:
        connection.execute("attach database ? as fallback", (str(fallback),))
        with database.transaction(connection, mode="immediate"):
            for table, columns in _shared_tables(connection):
                rows = f"select {columns} from fallback.{table}"  # noqa: S608
                if table in HISTORY_TABLES:
                    rows += f" where id >= (select coalesce(max(id), 0) from main.{table})"  # noqa: S608
                else:
                    connection.execute(f"delete from main.{table}")  # noqa: S608
                connection.execute(f"insert or replace into main.{table}({columns}) {rows}")


def _shared_tables(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """The tables that are in both databases, and their columns."""
    names = connection.execute(
        "select name from main.sqlite_master where type = 'table' and name not like 'sqlite_%'"
    ).fetchall()
    tables = []
    # The names are those of our schema.
    for (name,) in names:
        if name not in HOME_TABLES:
            columns = connection.execute(f"pragma main.table_info({name})").fetchall()
            tables.append((str(name), ", ".join(f'"{column[1]}"' for column in columns)))
    return tables


def remove_database(path: Path) -> None:
    """Remove a database and its companions, if they exist. Raises OSError."""
    for suffix in (*_COMPANION_SUFFIXES, ""):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
