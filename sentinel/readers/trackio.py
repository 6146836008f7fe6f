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

from sentinel.readers.log_config import LoggedConfig, parse_config
from sentinel.readers.log_reader import LogReader
from sentinel.readers.row_reader import Row, row_reader
from sentinel.readers.rows import RowConverter

SQLITE_MAGIC = b"SQLite format 3\0"
MAX_JSON_CHARS = 2**20
"""Characters of the numbers of one row."""

MAX_NAMES_SHOWN = 10

REQUIRED_COLUMNS = {"id", "run_name", "timestamp", "step", "metrics"}
_SELECT_RUN_NAMES = "select run_name from metrics group by run_name order by max(id) desc"
_SELECT_CONFIG = """select case when length(config) <= ? then config end
from configs where run_name = ? order by id desc limit 1"""
_SELECT_NEW_ROWS = """select id, step, timestamp, case when length(metrics) <= ? then metrics end
from metrics where run_name = ? and id > ? order by id"""


def can_read(path: Path, head: bytes) -> bool:
    """Whether it is an SQLite file with trackio's table of metrics."""
    if path.is_dir() or not head.startswith(SQLITE_MAGIC):
        return False
    try:
        with closing(_open(path)) as connection:
            _run_names(connection)
    except (sqlite3.Error, ValueError):
        return False
    return True


def read(path: Path, run_name: str = "") -> LogReader:
    """Records of the run `part`, else of the one that wrote last.

    Raises OSError or ValueError, while iterating, if unreadable or without that run.
    """

    def found(reading: LogReader) -> Iterator[Row | LoggedConfig | None]:
        try:
            with closing(_open(path)) as connection:
                name = _choose_run(_run_names(connection), run_name, reading)
                yield from _read_rows(connection, name, reading)
        except sqlite3.Error as error:
            raise ValueError(f"it cannot be read as trackio's: {error}") from None

    return row_reader(lambda _: RowConverter(run=run_name or path.stem), found)


def _choose_run(names: list[str], run_name: str, reading: LogReader) -> str:
    """The run to read; what it was chosen from is remarked."""
    shown = ", ".join(names[:MAX_NAMES_SHOWN]) + (", ..." if len(names) > MAX_NAMES_SHOWN else "")
    if run_name and run_name not in names:
        raise ValueError(f"it holds no run {run_name!r}, but {shown}")
    if not run_name and len(names) > 1:
        reading.notice = (
            f"it holds {len(names)} runs ({shown}), of which {names[0]}, the one that wrote last, "
            "is read; put another's name behind the path, as in project.db/name"
        )
    return run_name or names[0]


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1.0)
    connection.execute("pragma query_only = on")
    connection.execute("pragma trusted_schema = off")
    return connection


def _run_names(connection: sqlite3.Connection) -> list[str]:
    """Its runs, the one that wrote last first. Raises ValueError if it holds none."""
    kinds = connection.execute("select type from sqlite_master where name = 'metrics'").fetchall()
    columns = {row[1] for row in connection.execute("pragma table_info(metrics)")}
    if kinds != [("table",)] or not columns >= REQUIRED_COLUMNS:
        raise ValueError("it has no table of metrics as trackio makes it")
    names = [str(row[0]) for row in connection.execute(_SELECT_RUN_NAMES)]
    if not names:
        raise ValueError("it has no metrics yet")
    return names


def _read_rows(
    connection: sqlite3.Connection, name: str, reading: LogReader
) -> Iterator[Row | LoggedConfig | None]:
    while True:
        if (config := _read_config(connection, name)) is not None:
            yield config
        for number, step, time, told in connection.execute(
            _SELECT_NEW_ROWS, (MAX_JSON_CHARS, name, reading.position)
        ):
            reading.position = number
            yield _parse_row(step, time, told)
        if not reading.is_live:
            return
        yield None


def _read_config(connection: sqlite3.Connection, name: str) -> LoggedConfig | None:
    """What the run was configured with, where that is kept: early versions kept none."""
    columns = {row[1] for row in connection.execute("pragma table_info(configs)")}
    if not columns >= {"id", "run_name", "config"}:
        return None
    row = connection.execute(_SELECT_CONFIG, (MAX_JSON_CHARS, name)).fetchone()
    return parse_config(row[0]) if row is not None and isinstance(row[0], str | bytes) else None


def _parse_row(step: Any, time: Any, metrics: Any) -> Row:
    """The row, or nothing if it cannot be read."""
    try:
        values = json.loads(metrics)
        at = datetime.fromisoformat(time).timestamp()
    except (TypeError, ValueError, RecursionError):
        return {}
    # It counts what is logged, where a row may say which step of the run it is of.
    return {**values, "_step": step, "time": at} if isinstance(values, dict) else {}
