"""trackio: the SQLite file of a project, of which the run that wrote last is read.

Another is read by its name behind the file's: `project.db/first-run`. The file is opened to be read
only, while trackio may be writing to it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from sentinel.readers.log_config import Stated, parsed
from sentinel.readers.log_reader import Reading
from sentinel.readers.row_reader import Row, telling
from sentinel.readers.rows import Rows

BEGINNING = b"SQLite format 3\0"
LONGEST = 2**20
"""Characters of the numbers of one row."""

MOST_SHOWN = 10

COLUMNS = {"id", "run_name", "timestamp", "step", "metrics"}
_NAMES = "select run_name from metrics group by run_name order by max(id) desc"
_CONFIG = """select case when length(config) <= ? then config end
from configs where run_name = ? order by id desc limit 1"""
_NEWER = """select id, step, timestamp, case when length(metrics) <= ? then metrics end
from metrics where run_name = ? and id > ? order by id"""


def recognises(path: Path, head: bytes) -> bool:
    """Whether it is an SQLite file with trackio's table of metrics."""
    if path.is_dir() or not head.startswith(BEGINNING):
        return False
    try:
        with closing(_open(path)) as connection:
            _names(connection)
    except (sqlite3.Error, ValueError):
        return False
    return True


def read(path: Path, part: str = "") -> Reading:
    """Records of the run `part`, else of the one that wrote last.

    Raises OSError or ValueError, while iterating, if unreadable or without that run.
    """

    def found(reading: Reading) -> Iterator[Row | Stated | None]:
        try:
            with closing(_open(path)) as connection:
                name = _chosen(_names(connection), part, reading)
                yield from _rows(connection, name, reading)
        except sqlite3.Error as error:
            raise ValueError(f"it cannot be read as trackio's: {error}") from None

    return telling(lambda _: Rows(run=part or path.stem), found)


def _chosen(names: list[str], part: str, reading: Reading) -> str:
    """The run to read; what it was chosen from is remarked."""
    shown = ", ".join(names[:MOST_SHOWN]) + (", ..." if len(names) > MOST_SHOWN else "")
    if part and part not in names:
        raise ValueError(f"it holds no run {part!r}, but {shown}")
    if not part and len(names) > 1:
        reading.remark = (
            f"it holds {len(names)} runs ({shown}), of which {names[0]}, the one that wrote last, "
            "is read; put another's name behind the path, as in project.db/name"
        )
    return part or names[0]


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1.0)
    connection.execute("pragma query_only = on")
    connection.execute("pragma trusted_schema = off")
    return connection


def _names(connection: sqlite3.Connection) -> list[str]:
    """Its runs, the one that wrote last first. Raises ValueError if it holds none."""
    kinds = connection.execute("select type from sqlite_master where name = 'metrics'").fetchall()
    columns = {row[1] for row in connection.execute("pragma table_info(metrics)")}
    if kinds != [("table",)] or not columns >= COLUMNS:
        raise ValueError("it has no table of metrics as trackio makes it")
    names = [str(row[0]) for row in connection.execute(_NAMES)]
    if not names:
        raise ValueError("it has no metrics yet")
    return names


def _rows(
    connection: sqlite3.Connection, name: str, reading: Reading
) -> Iterator[Row | Stated | None]:
    while True:
        if (config := _config(connection, name)) is not None:
            yield config
        for number, step, time, told in connection.execute(_NEWER, (LONGEST, name, reading.mark)):
            reading.mark = number
            yield _row(step, time, told)
        if not reading.live:
            return
        yield None


def _config(connection: sqlite3.Connection, name: str) -> Stated | None:
    """What the run was configured with, where that is kept: early versions kept none."""
    columns = {row[1] for row in connection.execute("pragma table_info(configs)")}
    if not columns >= {"id", "run_name", "config"}:
        return None
    row = connection.execute(_CONFIG, (LONGEST, name)).fetchone()
    return parsed(row[0]) if row is not None and isinstance(row[0], str | bytes) else None


def _row(step: Any, time: Any, told: Any) -> Row:
    """The row, or nothing if it cannot be read."""
    try:
        values = json.loads(told)
        at = datetime.fromisoformat(time).timestamp()
    except (TypeError, ValueError, RecursionError):
        return {}
    # It counts what is logged, where a row may say which step of the run it is of.
    return {**values, "_step": step, "time": at} if isinstance(values, dict) else {}
