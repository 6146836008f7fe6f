"""Copies what can still be read of a damaged database into a new one, row by row where needed.

Ring positions, snapshot and journal belong together: unless all of them can be read, none is
copied, and the agent reads the rings again from their start.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.model.record import Event
from sentinel.store import database
from sentinel.store.record_rows import LayoutTable, RowLayout, unpack
from sentinel.store.series.blocks import unpack_signals
from sentinel.store.storage_monitor import is_json
from sentinel.transport.batch_codec import decode_standalone

log = logging.getLogger(__name__)

MAX_TABLE_SECONDS = 5.0
MAX_SECONDS = 20.0
"""Limits of the time that is spent on one table, and on all."""
ROWS_PER_STATEMENT = 4096
MAX_REPAIRED_BYTES = 256 << 20
"""Size of the file up to which a damaged schema is replaced, in a copy."""

PAGE_SIZE = 4096
_PAGE_COUNT_OFFSET = 28

_STATE_TABLES = ("ring", "snapshot", "journal")
_LAST_TABLES = ("layout", "threshold", "block", "step", "sample", "media")
"""Large tables, after all that decide what is notified; layouts before what needs them."""
_NOTIFICATION_TABLES = frozenset(
    {"outbox", "sink_address", "sink_pause", "ack", "silence", "command"}
)
_LABELS = {
    "outbox": "sent notifications",
    "pending_notification": "held notifications",
    "ack": "acknowledgements",
    "silence": "silences",
    "feedback": "feedback on notifications",
    "drawn_rows": "rows behind incidents",
    "incident": "incidents",
    "case_history": "cases",
    "metadata": "settings of the run",
    "layout": "history",
    "block": "history",
    "step": "history",
    "sample": "generated texts",
    "threshold": "history",
    "media": "logged images",
    "spool": "records for the head",
    "node": "state of the nodes",
    "cluster": "state of the nodes",
}
_JSON_COLUMNS = {
    "outbox": "notification",
    "ring": "names",
    "snapshot": "state",
    "incident": "body",
    "case_history": "body",
    "pending_notification": "notification",
    "node": "state",
    "layout": "body",
}
_READ_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""The latter is raised for an error whose message quotes a damaged name."""
_UNSENT = ("queued", "withheld", "sending")
_IS_SENT = "state in ('delivered', 'dead', 'merged', 'digested', 'withdrawn')"
_STORED_TYPES = {
    "integer": "'integer'",
    "real": "'real', 'integer'",
    "text": "'text'",
    "blob": "'blob'",
}
"""Types in which SQLite stores the values of a column, by its declared type."""


@dataclass
class Salvage:
    """What was copied. `lost_tables` are those of which rows may be missing."""

    rows: int = 0
    lost_tables: list[str] = field(default_factory=list)
    has_state: bool = False
    """Whether detectors and ring positions continue as stored."""

    @property
    def text(self) -> str:
        """What the new database has, as part of a sentence.

        >>> Salvage(rows=10, lost_tables=["step"], has_state=True).text
        'all but parts of: history'
        """
        if not self.rows:
            return "nothing; the records in shared memory are read again"
        labels = [_LABELS[name] for name in self.lost_tables if name in _LABELS]
        found = "everything"
        if labels:
            found = f"all but parts of: {', '.join(dict.fromkeys(labels))}"
        return found if self.has_state else f"{found}; the records in shared memory are read again"


def salvage(damaged: Path, path: Path, *, only_notifications: bool = False) -> Salvage:
    """Copy the rows of `damaged` into the new database at `path`, which has none.

    With `only_notifications`, only of the tables that decide what is notified. Never raises for
    what is wrong with `damaged`, which is not changed.
    """
    result = _Copy(damaged, path, only_notifications).run()
    if not result.rows and not result.has_state:
        with suppress(OSError), _repaired_copy(damaged, path) as repaired:
            if repaired is not None:
                result = _Copy(repaired, path, only_notifications).run()
    return result


class _Copy:
    def __init__(self, damaged: Path, path: Path, only_notifications: bool) -> None:
        self.damaged, self.path, self.only_notifications = damaged, path, only_notifications
        self.result = Salvage()
        self.deadline = time.monotonic() + MAX_SECONDS

    def run(self) -> Salvage:
        """Copy every table that both databases have."""
        with closing(
            sqlite3.connect(f"{self.path.as_uri()}?mode=rw", uri=True, isolation_level=None)
        ) as self.connection:
            self.connection.execute("pragma synchronous=normal")
            try:
                self.connection.execute(
                    "attach ? as damaged", [database.read_only_uri(self.damaged)]
                )
                names = self._table_names()
            except _READ_ERRORS as error:
                log.warning("Nothing of the damaged database can be read: %s", error)
                return self.result
            for name in names:
                self._copy_table(name)
            self.result.has_state = self._keep_state()
        self.damaged.with_name(f"{self.damaged.name}-shm").unlink(missing_ok=True)
        return self.result

    def _table_names(self) -> list[str]:
        query = "select name from {}.sqlite_schema where type = 'table'"
        readable, wanted = (
            {str(name) for (name,) in self.connection.execute(query.format(schema))}
            for schema in ("damaged", "main")
        )
        tables = {name for name in readable & wanted if not name.startswith("sqlite_")}
        if self.only_notifications:
            self.result.lost_tables += sorted(tables.difference(_NOTIFICATION_TABLES))
            tables &= _NOTIFICATION_TABLES
        last = [name for name in _LAST_TABLES if name in tables]
        return [*sorted(tables.difference(last)), *last]

    def _copy_table(self, name: str) -> None:
        deadline = min(self.deadline, time.monotonic() + MAX_TABLE_SECONDS)
        try:
            copied = _TableCopy(self.connection, name, deadline)
            is_complete = copied.run()
            if name == "layout" and not is_complete:
                is_complete = self._copy_layouts()
            if name == "outbox" and not is_complete:
                self._copy_sent_keys()
            is_complete &= self._delete_unreadable(name)
            query = f"select count(*) from main.{name}"  # noqa: S608 - a name of the schema
            self.result.rows += int(self.connection.execute(query).fetchone()[0])
        except _READ_ERRORS as error:
            log.warning("Table %s cannot be read: %s", name, error)
            is_complete = False
        if not is_complete:
            self.result.lost_tables.append(name)

    def _copy_layouts(self) -> bool:
        """The layouts from their index, which has the same columns."""
        try:
            self.connection.execute(
                "insert or ignore into main.layout(id, body)"
                " select id, body from damaged.layout order by body"
            )
        except _READ_ERRORS:
            return False
        return True

    def _copy_sent_keys(self) -> None:
        """The keys of sent notifications from the indices, so that none is sent again."""
        columns = {
            "key": "sqlite_autoindex_outbox_1",
            "state": "outbox_due",
            "incident, sink": "outbox_by_incident",
        }
        found: dict[int, dict[str, Any]] = {}
        for names, index in columns.items():
            query = f"select rowid, {names} from damaged.outbox indexed by {index}"  # noqa: S608
            with suppress(*_READ_ERRORS):
                for number, *values in self.connection.execute(query):
                    row = found.setdefault(number, {})
                    row |= zip(names.split(", "), values, strict=True)
        for number, row in sorted(found.items()):
            # What was not sent is found again in the rings, with its text.
            if "key" in row and row.get("state") not in _UNSENT:
                self.connection.execute(
                    "insert or ignore into main.outbox(rowid, key, sink, notification, state,"
                    " severity, created, next_at, incident) values(?, ?, ?, '', ?, '', 0, 0, ?)",
                    (
                        number,
                        row["key"],
                        row.get("sink", ""),
                        row.get("state", "delivered"),
                        row.get("incident", ""),
                    ),
                )

    def _delete_unreadable(self, name: str) -> bool:
        """Delete the rows whose content is no longer what was stored; whether there are none."""
        columns = self.connection.execute(f"pragma main.table_info({name})").fetchall()
        wrong = " or ".join(
            f"typeof({column}) not in ('null', {_STORED_TYPES[kind.lower()]})"
            for _, column, kind, *_ in columns
        )
        deleted = self.connection.execute(f"delete from main.{name} where {wrong}").rowcount  # noqa: S608
        is_readable = self._content_check(name)
        self.connection.text_factory = bytes
        try:
            rows = self.connection.execute(f"select rowid, * from main.{name} order by 1 desc")  # noqa: S608
            names = [str(column[0]) for column in rows.description][1:]
            unreadable = [
                number
                for number, *values in rows
                if time.monotonic() < self.deadline
                and not is_readable(dict(zip(names, values, strict=True)))
            ]
        finally:
            self.connection.text_factory = str
        if name == "outbox":
            # What was sent need not be readable, only its key.
            query = f"update main.outbox set notification = '' where rowid = ? and {_IS_SENT}"  # noqa: S608
            self.connection.executemany(query, [(number,) for number in unreadable])
            query = "delete from main.outbox where rowid = ? and notification != ''"
        else:
            query = f"delete from main.{name} where rowid = ?"  # noqa: S608
        self.connection.executemany(query, [(number,) for number in unreadable])
        return not deleted and not unreadable

    def _content_check(self, table: str) -> Callable[[dict[str, Any]], bool]:
        """Whether a row of the table can be decoded; its texts are bytes."""
        if table == "journal":
            return _is_journal_row
        if table in ("step", "block"):
            layouts = self._layouts()
            decode = _decode_step if table == "step" else _decode_block
            return lambda row: _can_decode(decode, layouts, row)
        if table == "media":
            return lambda row: _is_text_row(row | {"body": None})
        column = _JSON_COLUMNS.get(table)
        return lambda row: _is_text_row(row) and (column is None or is_json(row[column]))

    def _layouts(self) -> dict[int, RowLayout]:
        """The layouts that can be read, by id."""
        table, layouts = LayoutTable(self.connection), dict[int, RowLayout]()
        for (number,) in self.connection.execute("select id from main.layout").fetchall():
            with suppress(ValueError, KeyError, TypeError, AttributeError, IndexError):
                layouts[number] = table.get(number)
        return layouts

    def _keep_state(self) -> bool:
        """Delete positions, snapshot and journal unless all were read; whether they were.

        Without any history they are deleted too: the rings may have it.
        """
        is_read = not set(_STATE_TABLES).intersection(self.result.lost_tables)
        is_read &= "step" not in self.result.lost_tables or self._has_rows("step")
        if is_read:
            return self._has_rows("ring")
        for name in _STATE_TABLES:
            self.connection.execute(f"delete from main.{name}")  # noqa: S608
        return False

    def _has_rows(self, table: str) -> bool:
        query = f"select 1 from main.{table} limit 1"  # noqa: S608
        return self.connection.execute(query).fetchone() is not None


@dataclass
class _TableCopy:
    """Copies one table of a damaged database."""

    connection: sqlite3.Connection
    name: str
    deadline: float

    def run(self) -> bool:
        """Copy the rows that can be read; whether those are all."""
        columns = [name for _, name, *_ in self._columns("main")]
        if columns != [name for _, name, *_ in self._columns("damaged")]:
            return False
        # The order of rows has a meaning, so they keep their numbers.
        has_number = any(kind == "INTEGER" and pk for _, _, kind, _, _, pk in self._columns("main"))
        names = ", ".join(columns if has_number else ["rowid", *columns])
        self._sql = (
            f"insert or ignore into main.{self.name}({names})"  # noqa: S608
            f" select {names} from damaged.{self.name} where rowid between ? and ?"
        )
        first, last, is_complete = self._bounds()
        for start in range(first, last + 1, ROWS_PER_STATEMENT):
            is_complete &= self._copy_range(start, min(start + ROWS_PER_STATEMENT - 1, last))
        return is_complete

    def _columns(self, schema: str) -> list[tuple[Any, ...]]:
        query = f"pragma {schema}.table_info({self.name})"
        return [(*row[:2], str(row[2]).upper(), *row[3:]) for row in self.connection.execute(query)]

    def _bounds(self) -> tuple[int, int, bool]:
        """First and last row that can be reached, and whether there are no others."""
        first = self._edge("min")
        last = self._edge("max")
        if first is not None and last is not None:
            return first[0], last[0], True
        low = 1 if first is None else first[0]
        if last is not None:
            return low, last[0], False
        # The last page is damaged: the last row before it.
        reachable, step = 0, 1 << 40
        while step:
            found = self._row_before(reachable + step)
            if found is not None:
                reachable = max(reachable + step, found)
            step >>= 1
        found = self._row_before(reachable) or 0
        return low, found, False

    def _edge(self, function: str) -> tuple[int] | None:
        """The first or last row number, 0 and -1 of an empty table; None if unreadable."""
        query = f"select {function}(rowid) from damaged.{self.name}"  # noqa: S608
        try:
            (number,) = self.connection.execute(query).fetchone()
        except _READ_ERRORS:
            return None
        empty = 0 if function == "min" else -1
        return (empty if number is None else int(number),)

    def _row_before(self, number: int) -> int | None:
        """The last row up to `number`; None if that cannot be read."""
        query = f"select max(rowid) from damaged.{self.name} where rowid <= ?"  # noqa: S608
        try:
            (found,) = self.connection.execute(query, [number]).fetchone()
        except _READ_ERRORS:
            return None
        return int(found or 0)

    def _copy_range(self, first: int, last: int) -> bool:
        """Copy these rows, or each half of them if that fails; whether all were read."""
        try:
            self.connection.execute(self._sql, (first, last))
        except _READ_ERRORS:
            if first == last or time.monotonic() > self.deadline:
                return False
            middle = (first + last) // 2
            self._copy_range(first, middle)
            self._copy_range(middle + 1, last)
            return False
        return True


def _is_text_row(row: dict[str, Any]) -> bool:
    """Whether every text of the row is UTF-8; blobs are bytes too, and are not texts."""
    return all(_is_utf_8(value) for name, value in row.items() if name not in _BLOB_COLUMNS)


_BLOB_COLUMNS = frozenset({"records", "sequences", "vals"})


def _is_utf_8(value: Any) -> bool:
    try:
        return not isinstance(value, bytes) or value.decode() is not None
    except UnicodeDecodeError:
        return False


def _is_journal_row(row: dict[str, Any]) -> bool:
    try:
        return list(decode_standalone(row["records"], "")) is not None
    except Exception:
        return False


def _can_decode(
    decode: Callable[[dict[int, RowLayout], dict[str, Any]], object],
    layouts: dict[int, RowLayout],
    row: dict[str, Any],
) -> bool:
    try:
        decode(layouts, row)
    except Exception:
        return False
    return True


def _decode_step(layouts: dict[int, RowLayout], row: dict[str, Any]) -> object:
    header = (row["attempt"], row["step"], row["time"], row["event"].decode())
    return unpack("", layouts[row["layout"]], row["vals"], header)


def _decode_block(layouts: dict[int, RowLayout], row: dict[str, Any]) -> object:
    Event(row["event"].decode())
    return unpack_signals(layouts[row["layout"]], row["vals"])


@dataclass
class _repaired_copy:  # noqa: N801 - a context manager
    """A copy of a database whose schema is damaged, with that of a new one; None if too large.

    The tables of a new database have the same pages in each file of one version.
    """

    damaged: Path
    template: Path

    def __enter__(self) -> Path | None:
        self.copy = self.damaged.with_name(f".{self.damaged.name}.repaired")
        if self.damaged.stat().st_size > MAX_REPAIRED_BYTES:
            return None
        for suffix in ("", "-wal"):
            source = self.damaged.with_name(self.damaged.name + suffix)
            if source.exists():
                shutil.copyfile(source, self.copy.with_name(self.copy.name + suffix))
        with self.copy.open("r+b") as file:
            pages = self.copy.stat().st_size // PAGE_SIZE
            for number, page in self._schema_pages():
                file.seek((number - 1) * PAGE_SIZE)
                file.write(page)
            file.seek(_PAGE_COUNT_OFFSET)
            file.write(pages.to_bytes(4, "big"))
        return self.copy

    def __exit__(self, *_: object) -> None:
        for suffix in ("", "-wal", "-shm"):
            self.copy.with_name(self.copy.name + suffix).unlink(missing_ok=True)

    def _schema_pages(self) -> Iterator[tuple[int, bytes]]:
        """Number and content of the pages of the schema, which is all that a new database has."""
        with closing(database.connect(self.template)) as connection:
            connection.execute("pragma wal_checkpoint(truncate)").fetchall()
            roots = {
                int(root) for (root,) in connection.execute("select rootpage from sqlite_schema")
            }
        content = self.template.read_bytes()
        for number in range(1, len(content) // PAGE_SIZE + 1):
            if number not in roots:
                yield number, content[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]
