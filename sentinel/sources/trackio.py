"""trackio: the SQLite file of a project, of which the run that wrote last is read.

It is opened to be read only, while trackio may be writing to it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from sentinel.sources.reading import Reading
from sentinel.sources.rows import Rows
from sentinel.sources.telling import Row, telling

BEGINNING = b"SQLite format 3\0"
LONGEST = 2**20
"""Characters of the numbers of one row."""

COLUMNS = {"id", "run_name", "timestamp", "step", "metrics"}
_LAST = "select run_name from metrics order by id desc limit 1"
_NEWER = """select id, step, timestamp, case when length(metrics) <= ? then metrics end
from metrics where run_name = ? and id > ? order by id"""


def recognises(path: Path, head: bytes) -> bool:
    """Whether it is an SQLite file with trackio's table of metrics."""
    if path.is_dir() or not head.startswith(BEGINNING):
        return False
    try:
        with closing(_open(path)) as connection:
            _name(connection)
    except (sqlite3.Error, ValueError):
        return False
    return True


def read(path: Path) -> Reading:
    """Records of the run. Raises OSError or ValueError, while iterating, if unreadable."""

    def found(reading: Reading) -> Iterator[Row | None]:
        try:
            with closing(_open(path)) as connection:
                yield from _rows(connection, reading)
        except sqlite3.Error as error:
            raise ValueError(f"it cannot be read as trackio's: {error}") from None

    return telling(lambda _: Rows(run=path.stem), found)


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1.0)
    connection.execute("pragma query_only = on")
    connection.execute("pragma trusted_schema = off")
    return connection


def _name(connection: sqlite3.Connection) -> str:
    """The run that wrote last. Raises ValueError if there is no such table, or nothing in it."""
    kinds = connection.execute("select type from sqlite_master where name = 'metrics'").fetchall()
    columns = {row[1] for row in connection.execute("pragma table_info(metrics)")}
    if kinds != [("table",)] or not columns >= COLUMNS:
        raise ValueError("it has no table of metrics as trackio makes it")
    last = connection.execute(_LAST).fetchone()
    if last is None:
        raise ValueError("it has no metrics yet")
    return str(last[0])


def _rows(connection: sqlite3.Connection, reading: Reading) -> Iterator[Row | None]:
    name = _name(connection)
    while True:
        for number, step, time, told in connection.execute(_NEWER, (LONGEST, name, reading.mark)):
            reading.mark = number
            yield _row(step, time, told)
        if not reading.live:
            return
        yield None


def _row(step: Any, time: Any, told: Any) -> Row:
    """The row, or nothing if it cannot be read."""
    try:
        values = json.loads(told)
        at = datetime.fromisoformat(time).timestamp()
    except (TypeError, ValueError, RecursionError):
        return {}
    return {**values, "step": step, "time": at} if isinstance(values, dict) else {}
