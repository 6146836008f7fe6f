"""trackio: the SQLite file of a project. By default the run that wrote last is read.

`project.db/first-run` reads another run by its name. The file is opened read-only, while trackio
may be writing to it.
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
from sentinel.readers.log_reader import LogReader, Row, row_reader
from sentinel.readers.rows import RowConverter

FORMAT_NAME = "trackio"

SQLITE_MAGIC = b"SQLite format 3\0"
MAX_JSON_CHARS = 2**20
"""A row with longer JSON is counted as unreadable."""

MAX_NAMES_SHOWN = 10

REQUIRED_COLUMNS = {"id", "run_name", "timestamp", "step", "metrics"}
_SELECT_RUN_NAMES = "select run_name from metrics group by run_name order by max(id) desc"
_SELECT_CONFIG = """select case when length(config) <= ? then config end
from configs where run_name = ? order by id desc limit 1"""
_SELECT_LAST_STEP = "select max(step) from metrics where run_name = ?"
_SELECT_NEW_ROWS = """select id, step, timestamp, case when length(metrics) <= ? then metrics end
from metrics where run_name = ? and id > ? order by id"""


def can_read(path: Path, head: bytes) -> bool:
    """Whether it is an SQLite file with trackio's table `metrics`."""
    if path.is_dir() or not head.startswith(SQLITE_MAGIC):
        return False
    try:
        with closing(_open(path)) as connection:
            _run_names(connection)
    except (sqlite3.Error, ValueError):
        return False
    return True


def read(path: Path, run_name: str = "") -> LogReader:
    """Records of the run `run_name`, else of the run that wrote last.

    Raises OSError or ValueError, while iterating, if unreadable or without that run.
    """

    def rows(reader: LogReader) -> Iterator[Row | LoggedConfig | None]:
        try:
            with closing(_open(path)) as connection:
                name = _choose_run(_run_names(connection), run_name, reader)
                yield from _read_rows(connection, name, reader)
        except sqlite3.Error as error:
            raise ValueError(f"it cannot be read as a trackio project: {error}") from None

    return row_reader(lambda _: RowConverter(run=run_name or path.stem), rows)


def run_names(path: Path) -> list[str]:
    """Names of the runs in a file, the one that wrote last first; none if it cannot be read."""
    try:
        with closing(_open(path)) as connection:
            return _run_names(connection)
    except (sqlite3.Error, ValueError):
        return []


def last_step(path: Path, run_name: str) -> int | None:
    """Trackio's own number of the last call of `log`. Raises sqlite3.Error, ValueError."""
    with closing(_open(path)) as connection:
        row = connection.execute(_SELECT_LAST_STEP, [run_name]).fetchone()
    return row[0] if row is not None and isinstance(row[0], int) else None


def _choose_run(names: list[str], run_name: str, reader: LogReader) -> str:
    """The run to read; if there are others, `reader.notice` names them."""
    shown = ", ".join(names[:MAX_NAMES_SHOWN]) + (", ..." if len(names) > MAX_NAMES_SHOWN else "")
    if run_name and run_name not in names:
        raise ValueError(f"it holds no run {run_name!r}; its runs: {shown}")
    if not run_name and len(names) > 1:
        reader.notice = (
            f"it holds {len(names)} runs ({shown}); {names[0]}, which wrote last, is read; "
            "to read another, append its name to the path: project.db/name"
        )
    return run_name or names[0]


def _open(path: Path) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode=ro"
    # An iteration that is left may be closed in any thread, as the garbage collector runs in any.
    connection = sqlite3.connect(uri, uri=True, timeout=1.0, check_same_thread=False)
    connection.execute("pragma query_only = on")
    connection.execute("pragma trusted_schema = off")
    return connection


def _run_names(connection: sqlite3.Connection) -> list[str]:
    """Names of the runs, the one that wrote last first. Raises ValueError if there are none."""
    kinds = connection.execute("select type from sqlite_master where name = 'metrics'").fetchall()
    columns = {row[1] for row in connection.execute("pragma table_info(metrics)")}
    if kinds != [("table",)] or not columns >= REQUIRED_COLUMNS:
        raise ValueError("it has no trackio table `metrics`")
    names = [str(row[0]) for row in connection.execute(_SELECT_RUN_NAMES)]
    if not names:
        raise ValueError("it has no metrics yet")
    return names


def _read_rows(
    connection: sqlite3.Connection, name: str, reader: LogReader
) -> Iterator[Row | LoggedConfig | None]:
    while True:
        if (config := _read_config(connection, name)) is not None:
            yield config
        for row_id, step, time, metrics in connection.execute(
            _SELECT_NEW_ROWS, (MAX_JSON_CHARS, name, reader.position)
        ):
            reader.position = row_id
            yield _parse_row(step, time, metrics)
        if not reader.is_live:
            return
        yield None


def _read_config(connection: sqlite3.Connection, name: str) -> LoggedConfig | None:
    """The run's configuration; None if there is none, as in early versions of trackio."""
    columns = {row[1] for row in connection.execute("pragma table_info(configs)")}
    if not columns >= {"id", "run_name", "config"}:
        return None
    row = connection.execute(_SELECT_CONFIG, (MAX_JSON_CHARS, name)).fetchone()
    return parse_config(row[0]) if row is not None and isinstance(row[0], str | bytes) else None


def _parse_row(step: Any, time: Any, metrics: Any) -> Row:
    """The row; empty if it cannot be parsed."""
    try:
        values = json.loads(metrics)
        timestamp = datetime.fromisoformat(time).timestamp()
    except (TypeError, ValueError, RecursionError):
        return {}
    # trackio's own step counts calls of `log`; the metrics may hold the run's step.
    return {**values, "_step": step, "time": timestamp} if isinstance(values, dict) else {}
