"""Copies the database of a run between shared memory, where an agent works, and the home directory.

Each of the two thins and caps its own history. Otherwise the one in the home directory becomes
equal to the one in shared memory with each copy, which writes only what differs.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

from sentinel.store import database
from sentinel.store.recovery import set_aside
from sentinel.store.retention import THINNED_EVENTS
from sentinel.store.storage_monitor import FailureKind, classify
from sentinel.transport.replaced_file import replacing

log = logging.getLogger(__name__)

APPENDED_TABLES = ("sample", "media")
"""Tables to which rows are only appended, with a growing `id`, as to `step`."""
SPOOL_TABLE = "spool"
"""Table to which rows are appended, too, and of which the oldest ones are deleted."""
COPIED_BY_NUMBER = ("layout", "step", "block", "thinning", *APPENDED_TABLES, SPOOL_TABLE)
MAX_HISTORY_ROWS = 5000
"""Rows of a history table that are copied to shared memory if there is no room for all."""
_COMPANION_SUFFIXES = ("-wal", "-shm", "-journal")
STAGED_PREFIX = "copy-"
"""Beginning of the names of files in shared memory with what is copied to the home directory."""
BEGUN_HERE_NAME = "sentinel.db.begun-here"
"""Name of the empty file beside a database that does not continue the one in the home directory."""

_BOUNDS_SQL = (
    "select coalesce(max(id), 0) from main.step",
    """
    select coalesce((
        select m.id from main.step m join source.step s
        on s.id = m.id and s.attempt = m.attempt and s.step = m.step and s.time = m.time
        and s.vals = m.vals order by m.id desc limit 1), 0)
    """,
    "select coalesce(max(next_id), 0) from source.thinning",
)
"""The newest row here, the newest one that both have, and the first that is not thinned there."""
_STRADDLING_SQL = """
select max(first_id) from source.block where event = ? and first_id <= ?
"""
_COPY_LAYOUTS_SQL = """
insert or ignore into main.layout(body) select body from source.layout where id in (
    select layout from source.step where id >= :first
    union select layout from source.block where first_id >= :first)
"""
_COPY_BLOCKS_SQL = """
insert into main.block(level, attempt, event, count, first_id, first_step, step, first_time, time,
    layout, vals)
select b.level, b.attempt, b.event, b.count, b.first_id, b.first_step, b.step, b.first_time,
    b.time, m.id, b.vals
from source.block b join source.layout l on l.id = b.layout join main.layout m on m.body = l.body
where b.event = :event and b.first_id >= :first order by b.id
"""
_COPY_STEPS_SQL = """
insert or replace into main.step(id, attempt, step, time, event, layout, vals)
select s.id, s.attempt, s.step, s.time, s.event, m.id, s.vals
from source.step s join source.layout l on l.id = s.layout join main.layout m on m.body = l.body
where s.id >= :first
"""
_DELETE_OF_EVENT_SQL = (
    "delete from main.step where event = ? and id >= ?",
    "delete from main.block where event = ? and first_id >= ?",
)
_ROW_SQL = "select id, attempt, step, time, event, vals from source.step where id = ?"
_SPOOL_ID_SQL = "select value from {}.cluster where key = 'spool_id'"
_SPOOL_ROW_SQL = "select id, number, records from source.spool where id = ?"
_FIRST_OF_SPOOL_SQL = """
select coalesce(
    (select min(id) from source.spool),
    (select seq + 1 from source.sqlite_sequence where name = 'spool'), 1)
"""
_DELETE_OF_SPOOL_SQL = """
delete from main.spool
where id < (select first from source.spool_range) or id >= (select start from source.spool_range)
"""
_LAYER_IDS_SQL = """
create table main.layer_row as select id from source.step where event = 'layers'
"""
_DELETE_LAYERS_SQL = """
delete from main.step where event = 'layers'
    and id > (select min(id) from source.layer_row) and id not in (select id from source.layer_row)
"""


def begin_in_shared_memory(target: Path) -> None:
    """Note that a database at `target` will not continue the one in the home directory."""
    (target.parent / BEGUN_HERE_NAME).touch(mode=0o600)


def copy_to_shared_memory(source: sqlite3.Connection, target: Path, max_bytes: int) -> None:
    """Copy an open database to a new file: of a history above `max_bytes`, the newest rows.

    The database of `source` may be full, read-only or deleted. Raises sqlite3.Error, OSError.
    """
    remove_database(target)
    database.connect(target).close()
    is_whole = _used_bytes(source) <= max_bytes
    source.execute("attach database ? as target", (str(target),))
    try:
        with database.transaction(source):
            for table, columns in _tables(source):
                rows = f"select {columns} from main.{table}"  # noqa: S608
                if table in ("block", "thinning") and not is_whole:
                    continue
                if table in ("step", *APPENDED_TABLES) and not is_whole:
                    rows += f" order by id desc limit {MAX_HISTORY_ROWS}"
                source.execute(f"delete from target.{table}")  # noqa: S608
                source.execute(f"insert into target.{table}({columns}) {rows}")
    except BaseException:
        remove_database(target)
        raise
    finally:
        source.execute("detach database target")


def restart_spool(path: Path) -> None:
    """Make the spool of a database one of its own, numbered from 1. Raises sqlite3.Error.

    The head may know later rows of the former one, if the database is not the newest.
    """
    with closing(database.connect(path)) as connection, database.transaction(connection):
        connection.execute("delete from cluster where key = 'spool_id'")
        connection.execute("update spool set id = id - (select min(id) - 1 from spool)")
        connection.execute(
            "update sqlite_sequence set seq = (select coalesce(max(id), 0) from spool)"
            " where name = 'spool'"
        )


def newest_time(path: Path) -> float:
    """Time of the newest record of a database (seconds since the epoch); 0 without any.

    What a killed process left unfinished is undone. Raises sqlite3.Error, NewerSchemaError.
    """
    database.connect(path, None).close()
    with closing(sqlite3.connect(database.read_only_uri(path), uri=True)) as connection:
        query = "select time from step order by id desc limit 1"
        row = connection.execute(query).fetchone()
    return 0.0 if row is None else float(row[0])


def replace_with_nothing(path: Path, error: Exception) -> None:
    """Set a database that cannot be read aside. Raises OSError."""
    moved = set_aside(path)
    log.warning("The database in the home directory cannot be read (%s): see %s", error, moved)


def copy_to_home(
    shared: Path,
    home: Path,
    replace: Callable[[Path, Exception], object] = replace_with_nothing,
) -> None:
    """Bring the database in the home directory up to date, in one transaction.

    It is created if missing. One that cannot be read is passed to `replace`, which puts a new one
    in its place or none. One that another run began is set aside. The database in shared memory may
    be in use. Raises sqlite3.Error, OSError.
    """
    mark = shared.parent / BEGUN_HERE_NAME
    if mark.exists():
        set_aside(home)
        mark.unlink()
    try:
        is_copied = _copy_changes(shared, home)
    except (sqlite3.Error, database.NewerSchemaError) as error:
        if not _is_unreadable(home):
            raise
        replace(home, error)
        is_copied = _copy_changes(shared, home)
    if not is_copied:
        moved = set_aside(home)
        log.warning("The database in the home directory has another history: see %s", moved)
        _copy_changes(shared, home)


def _is_unreadable(path: Path) -> bool:
    """Whether the database is damaged, or a later version of sentinel wrote it."""
    try:
        # A write-ahead log needs mapped memory: a disk that does not respond would then stop every
        # thread of the process.
        with closing(database.connect(path, "delete")) as connection:
            ((found,),) = connection.execute("pragma quick_check(1)").fetchall()
    except database.NewerSchemaError:
        return True
    except sqlite3.Error as error:
        return classify(error) is FailureKind.DAMAGED
    return bool(found != "ok")


def _copy_changes(shared: Path, home: Path) -> bool:
    """Copy what differs; False, and nothing is changed, if the two have no record in common.

    The disk of the home directory may not respond: meanwhile no lock and no snapshot of the
    database in shared memory is held, which is copied to a file beside it first.
    """
    # Of its own name: a thread that still waits for the disk may have another one.
    staged = shared.with_name(f"{STAGED_PREFIX}{token_hex(8)}.db")
    try:
        with closing(database.connect(home, "delete")) as connection:
            _stage(shared, staged, _newest(connection))
            with (
                _attached(connection, staged),
                database.transaction(connection, mode="immediate"),
            ):
                if not _append_history(connection):
                    return False
                connection.execute(_DELETE_OF_SPOOL_SQL)
                connection.execute("insert into main.spool select * from source.spool")
                _copy_spool_number(connection)
                for table, columns in _tables(connection):
                    if table not in COPIED_BY_NUMBER:
                        _make_equal(connection, table, columns)
        return True
    finally:
        remove_database(staged)


def _newest(connection: sqlite3.Connection) -> dict[str, tuple[Any, ...]]:
    """The newest row of each table that is copied by number, without a layout."""
    found: dict[str, tuple[Any, ...]] = {}
    compared = {
        "step": "id, attempt, step, time, event, vals",
        SPOOL_TABLE: "id, number, records",
    }
    for table in ("step", *APPENDED_TABLES, SPOOL_TABLE):
        columns = compared.get(table, "id")
        query = f"select {columns} from {table} order by id desc limit 1"  # noqa: S608
        row = connection.execute(query).fetchone()
        if row is not None:
            found[table] = row
    found["spool_id"] = _spool_id(connection, "main")
    return found


def _spool_id(connection: sqlite3.Connection, schema: str) -> tuple[Any, ...]:
    return tuple(connection.execute(_SPOOL_ID_SQL.format(schema)).fetchall())


def _stage(shared: Path, staged: Path, newest: Mapping[str, tuple[Any, ...]]) -> None:
    """Copy what the home directory may lack to the file `staged`; all, if `newest` is not there."""
    remove_database(staged)
    with (
        closing(database.connect(staged, "delete")) as connection,
        _attached(connection, shared),
    ):
        # It is written anew each time.
        connection.execute("pragma synchronous=off")
        _stage_rows(connection, newest)


def _stage_rows(connection: sqlite3.Connection, newest: Mapping[str, tuple[Any, ...]]) -> None:
    with database.transaction(connection):
        step = newest.get("step")
        is_known = step is not None and step == connection.execute(_ROW_SQL, [step[0]]).fetchone()
        for table, columns in _tables(connection):
            if table == SPOOL_TABLE:
                continue
            rows = f"select {columns} from source.{table}"  # noqa: S608
            first = 0
            if table in {"step", "block"} and step is not None and is_known:
                first = step[0]
            elif table in APPENDED_TABLES and table in newest:
                first = newest[table][0]
            number = "first_id" if table == "block" else "id"
            where = f" where {number} >= {int(first)}" if first else ""
            connection.execute(f"insert into main.{table}({columns}) {rows}{where}")
        connection.execute(_LAYER_IDS_SQL)
        _stage_spool(connection, newest)
        _copy_spool_number(connection)


def _stage_spool(connection: sqlite3.Connection, newest: Mapping[str, tuple[Any, ...]]) -> None:
    """Copy the rows that the home directory lacks: all, if what is there is of another spool."""
    (first,) = connection.execute(_FIRST_OF_SPOOL_SQL).fetchone()
    row = newest.get(SPOOL_TABLE)
    start = 0
    if row is not None and newest["spool_id"] == _spool_id(connection, "source"):
        same = connection.execute(_SPOOL_ROW_SQL, row[:1]).fetchone()
        if same == row or row[0] < first:
            start = row[0] + 1
    connection.execute(
        "create table main.spool_range as select ? as first, ? as start", (first, start)
    )
    connection.execute("insert into main.spool select * from source.spool where id >= ?", (start,))


def _append_history(connection: sqlite3.Connection) -> bool:
    """Append what is new after the last record in common; False if there is none."""
    newest, common, next_thinned = (
        connection.execute(query).fetchone()[0] for query in _BOUNDS_SQL
    )
    firsts = {event.value: common + 1 for event in THINNED_EVENTS}
    if newest < next_thinned:
        # What was thinned meanwhile is in blocks only, the first of which may begin here.
        for event in list(firsts):
            (first,) = connection.execute(_STRADDLING_SQL, (event, newest)).fetchone()
            first = newest + 1 if first is None else first
            for statement in _DELETE_OF_EVENT_SQL:
                connection.execute(statement, (event, first))
            firsts[event] = first
    elif newest and not common:
        return False
    else:
        # Others that differ were read again after damage.
        connection.execute("delete from main.step where id > ?", [common])
        connection.execute("delete from main.block where first_id > ?", [common])
    first = min(firsts.values())
    connection.execute(_COPY_LAYOUTS_SQL, {"first": first})
    for event, first_of_event in firsts.items():
        connection.execute(_COPY_BLOCKS_SQL, {"event": event, "first": first_of_event})
    connection.execute(_COPY_STEPS_SQL, {"first": first})
    connection.execute(_DELETE_LAYERS_SQL)
    for table, columns in _tables(connection):
        if table in APPENDED_TABLES:
            connection.execute(
                f"insert or replace into main.{table}({columns}) select {columns}"  # noqa: S608
                f" from source.{table}"
                f" where id > (select coalesce(max(id), 0) from main.{table})"
            )
    return True


def _copy_spool_number(connection: sqlite3.Connection) -> None:
    """Copy the number of the last row of the spool: numbers of deleted rows are not used again."""
    query = "select coalesce(max(seq), 0) from {}.sqlite_sequence where name = 'spool'"
    ours, theirs = (
        connection.execute(query.format(name)).fetchone()[0] for name in ("main", "source")
    )
    if ours != theirs:
        connection.execute("delete from main.sqlite_sequence where name = 'spool'")
        connection.execute(
            "insert into main.sqlite_sequence(name, seq) values('spool', ?)", [theirs]
        )


def _make_equal(connection: sqlite3.Connection, table: str, columns: str) -> None:
    """Make the rows of a small table equal to those of the attached database."""
    number = columns.partition(",")[0]
    ours, theirs = (f"select {columns} from {name}.{table}" for name in ("main", "source"))  # noqa: S608
    connection.execute(
        f"delete from main.{table} where rowid in (select {number} from ({ours} except {theirs}))"  # noqa: S608
    )
    connection.execute(f"insert or replace into main.{table}({columns}) {theirs} except {ours}")


@contextmanager
def _attached(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    connection.execute("attach database ? as source", (str(path),))
    try:
        yield
    finally:
        connection.execute("detach database source")


def _tables(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """The tables of the schema, and their columns: first the number of the row."""
    names = connection.execute(
        "select name from main.sqlite_master where type = 'table' and name not like 'sqlite_%'"
    ).fetchall()
    tables = []
    # The names are those of our schema.
    for (name,) in names:
        columns = connection.execute(f"pragma main.table_info({name})").fetchall()
        has_number = (columns[0][1], columns[0][2]) == ("id", "integer")
        names_of_columns = [f'"{column[1]}"' for column in columns]
        tables.append(
            (name, ", ".join(names_of_columns if has_number else ["rowid", *names_of_columns]))
        )
    return tables


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages, free, size = (
        connection.execute(f"pragma main.{name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def database_files(path: Path) -> list[Path]:
    """The files that a database may have, itself the last."""
    return [path.with_name(path.name + suffix) for suffix in (*_COMPANION_SUFFIXES, "")]


def release_database(path: Path) -> None:
    """Replace the files of a database by copies, on which no process holds a lock.

    For the locks of a killed process, which never uses the database again. Raises OSError.
    """
    for file in (path, path.with_name(f"{path.name}-wal")):
        if file.exists():
            with replacing(file) as copy:
                shutil.copyfile(file, copy)
    # Made again from the log.
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)


def remove_database(path: Path) -> None:
    """Remove a database and its companions, if they exist. Raises OSError."""
    for file in database_files(path):
        file.unlink(missing_ok=True)
