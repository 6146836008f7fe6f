"""Reads one run, live or past, from its database: the one source of web pages and reports.

Answers are plain data that JSON can represent: a value that is not finite is None. Each call opens
a read-only connection for a moment, so that no reader delays the commits of an agent; the series
stay in memory, and a call reads the rows that are new.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any

from sentinel.model.json_safe import finite_values
from sentinel.store import cases, media, samples
from sentinel.store.database import connect_read_only
from sentinel.store.history import History
from sentinel.store.run_metadata import RunMetadataStore
from sentinel.store.series.charted_signals import charted_name
from sentinel.store.series.layer_grid import has_layers, layer_grid
from sentinel.store.series.run_series import Report, RunSeries, Window, ignore
from sentinel.store.set_up import read_set_up
from sentinel.store.storage_monitor import reading_storage
from sentinel.store.thresholds import read_thresholds
from sentinel.store.timeline import build_timeline
from sentinel.transport.replaced_file import replace_file

MAX_TIMELINE_EVENTS = 2000
MAX_POINTS = 5000
MAX_ROWS = 20_000
MIN_STORED_ROWS = 5000
"""New rows after which the series are stored; to read so many again takes a few hundredths of a
second."""
_AXES = ("step", "time", "tokens")


_DELIVERY_COLUMNS = (
    "sink, reason, severity, incident, state, tries, created, next_at, finished_at, last_error"
)
_DELIVERIES_SQL = f"""
select {_DELIVERY_COLUMNS} from outbox order by created desc, rowid desc limit ?
"""  # noqa: S608


@dataclass
class RunReader:
    """The database of one run at `path`, for any number of threads.

    `report` gets the error of each damaged row, which is left out. With `stores_series`, a file
    beside the database has the series of a long run, so that the next reader reads only the rows
    that are new. Methods raise
    FileNotFoundError if there is no database, NewerSchemaError if a later version wrote it, and
    sqlite3.Error if it cannot be read.
    """

    path: Path
    report: Report = ignore
    clock: Callable[[], float] = time.time
    stores_series: bool = False
    _series: RunSeries = field(init=False)
    _lock: RLock = field(default_factory=RLock, init=False)
    _file: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self._series = RunSeries(self.report)

    def signals(self) -> list[dict[str, Any]]:
        """Every signal of the run, in the order in which a page shows them.

        Keys: name, label, unit, group, help, event (`step`, `eval` or `heartbeat`), is_monitored
        (see `describe_signal`), count (finite values), bad_count (values that are not finite; of
        a part of the history that was thinned, at least one a block) and latest (the newest value,
        None if it is not finite).
        """
        with self._refreshed():
            return self._series.signals()

    def series(
        self,
        names: Iterable[str],
        *,
        points: int = 800,
        axis: str = "step",
        start: float | None = None,
        end: float | None = None,
    ) -> dict[str, Any]:
        """Series of these signals with at most `points` points each, between `start` and `end`.

        Keys: axis (`step`, `time` in seconds since the epoch, or `tokens`; `step` if tokens are
        not counted), last_id (the newest row), trainings (the first `attempt` of each training of
        the run) and series: by name, x, attempt, mean, min, max,
        rank_min, rank_max, worst_rank (None without values of ranks), bad (the x of points with a
        value that is not finite), is_raw (every point is one record), count (finite values) and
        last (the newest value of the run, None if it is not finite).

        A point covers several records and is at the last of them. `attempt` counts the attempts,
        and another training or a step that goes back begins one: x is not sorted across them.
        Points at the edge of a wide window may cover records outside it. Names of no signal are
        left out. Raises ValueError for another axis.
        """
        if axis not in _AXES:
            raise ValueError(f"axis must be one of {', '.join(_AXES)}.")
        window = Window(axis, start, end, max(2, min(points, MAX_POINTS)))
        with self._refreshed() as connection:
            return self._series.series(connection, [*dict.fromkeys(names)], window)

    def rank_grid(
        self,
        signal: str,
        *,
        columns: int = 240,
        start: float | None = None,
        end: float | None = None,
    ) -> dict[str, Any]:
        """The mean of each rank in `columns` parts of the steps between `start` and `end`.

        Keys: signal, signals (those whose values are stored by rank), ranks, x (the last step of
        each column) and values (for each rank, one per column; None if it has none).
        """
        window = Window("step", start, end, max(2, min(columns, MAX_POINTS)))
        with self._refreshed():
            return self._series.rank_grid(signal, window)

    def has_layers(self) -> bool:
        """Whether statistics of layers are stored; one look at an index."""
        with self._reading() as connection:
            return has_layers(connection)

    def layers(
        self,
        statistic: str,
        *,
        columns: int = 240,
        start: float | None = None,
        end: float | None = None,
    ) -> dict[str, Any]:
        """A statistic of each layer in at most `columns` parts of the steps of a window.

        Keys: statistic, statistics (those of `LAYER_STATISTICS` that are stored), layers (in the
        order of the model), x (the last step of each column), values (for each layer the mean of
        its finite values in each column, None if it has none), bad (for each layer the numbers
        of the columns with an infinite value) and histograms (x, the step of the newest
        histograms in the window, and layer: by layer, first exponent and counts). What was measured
        before a step that goes back is replaced.
        """
        with self._reading() as connection:
            grid = layer_grid(connection, statistic, start, end, max(2, columns))
        found: dict[str, Any] = finite_values(grid)
        return found

    def rows_since(self, row_id: int, limit: int = 5000) -> dict[str, Any]:
        """The rows after `row_id`, oldest first.

        Keys: last_id, step, time, attempt and trainings (as in `series`), tokens (None if they are
        not counted), values (by signal, one per row, None if the row has none), ranks (by signal
        with values of ranks: rank_min, rank_max and worst_rank, one per row) and bad (by signal,
        the places in these lists where its value is not finite).
        """
        with self._refreshed() as connection:
            return self._series.rows_since(connection, row_id, max(1, min(limit, MAX_ROWS)))

    def thresholds(self, names: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        """The values at which detectors find a problem, by signal.

        Each has detector, x (steps), time, attempt and value: it holds up to the next one.
        """
        with self._reading() as connection:
            found = read_thresholds(connection, {*names})
        keys = ("x", "time", "attempt", "value")
        return {
            signal: [
                {"detector": detector}
                | dict(zip(keys, map(list, zip(*rows, strict=True)), strict=True))
                for detector, rows in by_detector.items()
            ]
            for signal, by_detector in found.items()
        }

    def timeline(self) -> dict[str, Any]:
        """What each detector found and when, and the events of the run; see `build_timeline`."""
        with self._refreshed() as connection:
            return build_timeline(
                connection, self._series.step_at, self.clock(), MAX_TIMELINE_EVENTS
            )

    def incidents(self) -> list[dict[str, Any]]:
        """Every incident, the newest first, see `History.incidents`; `signal` names a chart."""
        with self._reading() as connection:
            found = History(connection).incidents()
        listed: list[dict[str, Any]] = finite_values(
            [each | {"signal": charted_name(each["signal"])} for each in found]
        )
        return listed

    def cases(self, *, has_ages: bool = True) -> list[dict[str, Any]]:
        """Every case, the newest first, see `case_with_message`.

        Without `has_ages`, the texts do not state how long ago something was.
        """
        with self._reading() as connection:
            now = self.clock() if has_ages else None
            found: list[dict[str, Any]] = finite_values(
                cases.all_cases(connection, now, self.report)
            )
            return found

    def samples(
        self,
        step: int | None = None,
        limit: int = 20,
        search: str = "",
        before: int | None = None,
    ) -> list[dict[str, Any]]:
        """The newest generated texts, in the order they arrived; see `SampleStore.newest`."""
        with self._reading() as connection:
            found = samples.SampleStore(connection).newest(
                step, limit, search=search, before=before
            )
            listed: list[dict[str, Any]] = finite_values(found)
            return listed

    def sample_steps(self) -> list[tuple[int, int]]:
        """Each step with generated texts, and their number, in the order of steps."""
        with self._reading() as connection:
            rows = connection.execute("select step, count(*) from sample group by step")
            return [(int(step), int(count)) for step, count in rows]

    def deliveries(self, limit: int = 200) -> list[dict[str, Any]]:
        """The newest notifications and how far they are, newest first.

        Keys: sink, reason, severity, incident, state, tries, created, next_at, finished_at (epoch
        seconds) and last_error.
        """
        names = _DELIVERY_COLUMNS.split(", ")
        with self._reading() as connection:
            rows = connection.execute(_DELIVERIES_SQL, [max(0, limit)])
            return [dict(zip(names, row, strict=True)) for row in rows]

    def metadata(self) -> dict[str, Any]:
        """The metadata of the run by name."""
        with self._reading() as connection:
            found: dict[str, Any] = finite_values(RunMetadataStore(connection).as_dict())
            return found

    def set_up(self) -> dict[str, Any]:
        """What the checks of the training found, and facts of its configuration; `read_set_up`."""
        with self._reading() as connection:
            return read_set_up(connection)

    def media(self, kind: str | None = None, limit: int = 200) -> list[dict[str, Any]]:
        """The newest logged images and histograms, see `newest_media`."""
        with self._reading() as connection:
            return media.newest_media(connection, kind, max(0, limit))

    def media_body(self, number: int) -> tuple[str, bytes]:
        """Content type and content of an image or histogram. Raises KeyError and OSError."""
        with closing(self._connect()) as connection:
            return media.media_body(connection, number)

    @contextmanager
    def _refreshed(self) -> Iterator[sqlite3.Connection]:
        """A connection, with all rows that are stored in the series."""
        with self._lock, closing(self._connect()) as connection:
            file = _identity(self.path)
            if file != self._file:
                # Recovery, or the move to another directory, replaced the database.
                self._series.clear()
                self._file = file
                if self.stores_series:
                    with suppress(OSError):
                        self._series.restore(series_path(self.path).read_bytes(), file[1])
            known = self._series.last_id
            self._series.refresh(connection)
            if self.stores_series and self._series.last_id - known >= MIN_STORED_ROWS:
                with suppress(OSError):
                    replace_file(series_path(self.path), self._series.to_bytes(file[1]))
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection; content that cannot be decoded raises DamagedContentError."""
        with closing(self._connect()) as connection, reading_storage():
            yield connection

    def _connect(self) -> sqlite3.Connection:
        return connect_read_only(self.path.absolute())


def series_path(database: Path) -> Path:
    """The file that a reader with `stores_series` writes."""
    return database.with_suffix(".series")


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
