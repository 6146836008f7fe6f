"""The series of one run, kept in memory and continued with the rows that are new in the database.

The buckets are read once. After that a read takes the new rows only, and the rows of a window that
is too small for the buckets. Rows that are thinned meanwhile stay as they were read. If rows were
deleted, which happens when records are read again, everything is read anew.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import merge
from math import inf, isfinite
from typing import Any, NamedTuple
from zlib import crc32

from sentinel import __version__
from sentinel.model.record import Event
from sentinel.store.record_rows import LayoutTable, unpack
from sentinel.store.series.blocks import unpack_signals
from sentinel.store.series.charted_signals import (
    CHARTED_EVENTS,
    describe_signal,
    signal_order,
)
from sentinel.store.series.rank_grid import RankGrid, RankMeans, grid_to_dict, mean_by_rank
from sentinel.store.series.summary import NO_RANK
from sentinel.store.series.track import (
    MAX_BUCKETS,
    BlockDecoder,
    Column,
    Found,
    RowDecoder,
    Span,
    StoredRow,
    Track,
)
from sentinel.store.storage_monitor import DamagedContentError

log = logging.getLogger(__name__)

_RANK_RANGE = ("rank_min", "rank_max", "worst_rank")

MAX_DECODERS = 512
"""Decoders in memory; above it all are forgotten and made again when needed."""
ROWS_PER_READ = 2000
"""Rows of one query: between two of them a writer is not hindered by any journal mode."""
MAX_DETAIL_ROWS = 20_000
"""Rows that are read of the database for one window; a larger one is shown in buckets."""

_STORED_FIELDS = ("last_id", "_anchor", "_attempt", "_step", "_segment", "_trainings")

_NO_STEP = -(2**63)
"""Less than any step."""

MAX_ROWS_PER_COLUMN = 16
"""Rows of a column of a heat map up to which they are read singly, not by the buckets."""

_ROW = "id, attempt, step, time, event, layout, vals, step, time"
_BLOCK = "first_id, attempt, step, time, event, -layout, vals, first_step, first_time"
_NEW_ROWS_SQL = f"select {_ROW} from step where id > ? order by id limit ?"  # noqa: S608
_OLD_ROWS_SQL = f"select {_ROW} from step where id < ? order by id"  # noqa: S608
_BLOCKS_SQL = f"select {_BLOCK} from block order by first_id"  # noqa: S608
_DETAIL_ROWS_SQL = f"""
select {_ROW} from step where id between ?2 and ?3 and event = ?1 order by id
"""  # noqa: S608
_DETAIL_BLOCKS_SQL = f"""
select {_BLOCK} from block where event = ?1 and first_id <= ?3 and first_id >= coalesce(
    (select max(first_id) from block where event = ?1 and first_id <= ?2), ?2)
order by first_id
"""  # noqa: S608
_ANCHOR_SQL = "select attempt, step, time, layout, vals from step where id = ?"
_NEXT_THINNED_SQL = "select coalesce((select next_id from thinning), 0)"
_COUNTS_SQL = """
select event, sum(number) from (
    select event, count(*) as number from block group by event
    union all select event, count(*) from step where event <> 'step' group by event
    union all select 'step', count(*) from step)
group by event
"""

_DECODING_ERRORS = (
    ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error,
)  # fmt: skip

Report = Callable[[Exception], object]


def ignore(_error: Exception) -> None:
    """Do nothing with the error."""


@dataclass
class RunSeries:
    """The buckets of every signal of a run; every method takes a connection to its database.

    `report` gets the error of a damaged row, which is left out. Not thread-safe.
    """

    report: Report = ignore
    max_detail_rows: int = MAX_DETAIL_ROWS
    tracks: dict[str, Track] = field(default_factory=dict)
    last_id: int = 0
    _anchor: tuple[int, tuple[Any, ...]] | None = None
    """Id and content of the newest row that was read and would be deleted to be read again."""
    _newest: dict[str, dict[int, StoredRow]] = field(default_factory=dict)
    """The newest row of each event and layout: not every row has all values."""
    _attempt: int | None = None
    _step: int = 0
    _segment: int = 0
    _trainings: list[int] = field(default_factory=lambda: [0])
    """The first segment of each training."""
    _layouts: LayoutTable | None = None
    _rank_grid: RankGrid | None = None
    _signals: list[dict[str, Any]] | None = None
    _decoders: dict[tuple[int, Event, frozenset[str] | None], RowDecoder | BlockDecoder] = field(
        default_factory=dict
    )

    def clear(self) -> None:
        """Forget everything, for example because another file took the place of the database."""
        self.tracks.clear()
        self._newest.clear()
        self._decoders.clear()
        self._layouts = self._rank_grid = self._signals = self._anchor = self._attempt = None
        self.last_id = self._step = self._segment = 0
        self._trainings = [0]

    def to_bytes(self, database: int) -> bytes:
        """All that `refresh` has read, for `restore`; `database` is the inode of the file."""
        columns = [column for track in self.tracks.values() for column in track.columns.values()]
        header = {
            "of": [__version__, database],
            "fields": {name: getattr(self, name) for name in _STORED_FIELDS},
            "newest": [row for rows in self._newest.values() for row in rows.values()],
            "tracks": [
                (event, track.size, track.tokens, track.open_rows, track.spans, [*track.columns])
                for event, track in self.tracks.items()
            ],
        }
        text = json.dumps(header, default=bytes.hex).encode()
        arrays = [each.tobytes() for column in columns for each in column]
        body = b"".join([text, b"\n", *arrays])
        return crc32(body).to_bytes(4) + body

    def restore(self, content: bytes, database: int) -> None:
        """Continue from what `to_bytes` of this version returned; anything else is ignored."""
        if crc32(content[4:]) != int.from_bytes(content[:4]):
            return
        text, _, arrays = content[4:].partition(b"\n")
        header = json.loads(text)
        if header["of"] != [__version__, database]:
            return
        for name, value in header["fields"].items():
            setattr(self, name, value)
        if self._anchor is not None:
            number, (*position, blob) = self._anchor
            self._anchor = number, (*position, bytes.fromhex(blob))
        for row in map(StoredRow._make, header["newest"]):
            rows = self._newest.setdefault(row.event, {})
            rows[row.layout] = row._replace(numbers=bytes.fromhex(str(row.numbers)))
        at = 0
        for event, size, tokens, open_rows, spans, names in header["tracks"]:
            track = self._track(event)
            track.size, track.tokens, track.open_rows = size, tokens, open_rows
            track.spans = [*map(Span._make, spans)]
            for name in names:
                column = track.columns[name] = Column.of_empty(0)
                for each in column:
                    end = at + len(spans) * each.itemsize
                    each.frombytes(arrays[at:end])
                    at = end

    def refresh(self, connection: sqlite3.Connection) -> None:
        """Read the rows that are new since the last call."""
        self._use(connection)
        if self.last_id and not self._continues(connection):
            self.clear()
            self._use(connection)
        if not self.last_id:
            self._load_thinned(connection)
        while True:
            rows = [*_read(connection, _NEW_ROWS_SQL, self.last_id, ROWS_PER_READ)]
            self._add(rows)
            if len(rows) < ROWS_PER_READ:
                break
        for track in self.tracks.values():
            track.show_pending(self._segment)

    def _use(self, connection: sqlite3.Connection) -> None:
        """Read layouts through this connection; those in memory stay, as their ids do."""
        if self._layouts is None:
            self._layouts = LayoutTable(connection)
            self._rank_grid = RankGrid(self._layouts)
        self._layouts.connection = connection

    @property
    def _layout_table(self) -> LayoutTable:
        if self._layouts is None:
            raise RuntimeError("`refresh` comes first")
        return self._layouts

    def _continues(self, connection: sqlite3.Connection) -> bool:
        """Whether what was read is still there, and no row after it was thinned."""
        ((next_thinned,),) = connection.execute(_NEXT_THINNED_SQL).fetchall()
        if next_thinned > self.last_id + 1:
            return False
        if self._anchor is None:
            return True
        number, row = self._anchor
        found: tuple[Any, ...] | None = connection.execute(_ANCHOR_SQL, [number]).fetchone()
        return found == row

    def _load_thinned(self, connection: sqlite3.Connection) -> None:
        """Read the thinned part of the history, and choose the size of buckets."""
        connection.execute("begin")
        try:
            counts: dict[str, int] = dict(connection.execute(_COUNTS_SQL).fetchall())
            counts["step"] -= sum(counts.get(event, 0) for event in counts.keys() - {"step"})
            for event in _CHARTED & counts.keys():
                track = self._track(event)
                while counts[event] > track.size * MAX_BUCKETS:
                    track.size *= 2
            ((next_thinned,),) = connection.execute(_NEXT_THINNED_SQL).fetchall()
            rows = _read(connection, _OLD_ROWS_SQL, next_thinned)
            self._add(merge(rows, _read(connection, _BLOCKS_SQL)))
            self.last_id = max(self.last_id, next_thinned - 1)
        finally:
            connection.execute("rollback")

    def _track(self, event: str) -> Track:
        track = self.tracks.get(event)
        if track is None:
            track = self.tracks[event] = Track(Event(event), self._decode)
        return track

    def _add(self, rows: Iterable[StoredRow]) -> None:
        lasting: StoredRow | None = None
        row: StoredRow | None = None
        step_event, heartbeat = Event.STEP.value, Event.HEARTBEAT.value
        training = Event.TRAINING.value
        for row in rows:
            event = row.event
            if event != heartbeat:
                lasting = row
            if event == step_event:
                if row.attempt != self._attempt or row.first_step < self._step:
                    self._begin_segment(row)
                self._step = row.step
            elif event == training:
                self._begin_segment(row)
                self._trainings.append(self._segment)
                # Its steps may be counted from the beginning.
                self._step = _NO_STEP
                continue
            elif event not in _CHARTED:
                continue
            self._newest.setdefault(event, {})[row.layout] = row
            self._track(event).add(row, self._segment)
        if row is not None:
            self._signals = None
            self.last_id = max(self.last_id, row.id)
        if lasting is not None and lasting.layout > 0:
            content = lasting.attempt, lasting.step, lasting.time, lasting.layout, lasting.numbers
            self._anchor = lasting.id, content

    def _begin_segment(self, row: StoredRow) -> None:
        """A new attempt, another training, or a step that goes back."""
        for track in self.tracks.values():
            track.close_bucket(self._segment)
        self._track(Event.STEP.value).resume(row.first_step)
        is_first = self._attempt is None
        self._segment = row.attempt if is_first else max(self._segment + 1, row.attempt)
        self._attempt = row.attempt

    def _decode(
        self,
        number: int,
        event: Event,
        blobs: list[bytes],
        found: Found,
        wanted: frozenset[str] | None = None,
    ) -> None:
        """Add the summaries of rows of one layout; what cannot be decoded is reported."""
        try:
            self._decoder(number, event, wanted).add(blobs, found)
        except _DECODING_ERRORS as error:
            if len(blobs) == 1:
                self._report_damage(error, number, blobs[0])
                return
            for blob in blobs:
                self._decode(number, event, [blob], found, wanted)

    def _decoder(
        self, number: int, event: Event, wanted: frozenset[str] | None
    ) -> RowDecoder | BlockDecoder:
        decoder = self._decoders.get((number, event, wanted))
        if decoder is None:
            if len(self._decoders) >= MAX_DECODERS:
                self._decoders.clear()
            layout = self._layout_table.get(abs(number))
            kind = RowDecoder if number > 0 else BlockDecoder
            decoder = self._decoders[number, event, wanted] = kind(layout, event, wanted)
        return decoder

    def _report_damage(self, error: Exception, number: int, blob: bytes) -> None:
        """Report a row that cannot be decoded; not one that the history itself can read."""
        try:
            layout = self._layout_table.get(abs(number))
            if number > 0:
                unpack("", layout, blob, (0, 0, 0.0, Event.STEP))
            else:
                unpack_signals(layout, blob)
        except _DECODING_ERRORS:
            message = f"a row of the history cannot be decoded ({type(error).__name__})"
            self.report(DamagedContentError(message))
        else:
            log.error("A row of the history is left out of its series", exc_info=error)

    def find(self, name: str) -> Track | None:
        """The track that has the signal."""
        return next((each for each in self.tracks.values() if name in each.columns), None)

    def signals(self) -> list[dict[str, Any]]:
        """Every signal, as `RunReader.signals` returns it."""
        if self._signals is None:
            self._signals = self._list_signals()
        return [description.copy() for description in self._signals]

    def _list_signals(self) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for event, track in self.tracks.items():
            latest: Found = {}
            for row in sorted(self._newest.get(event, {}).values()):
                of_row: Found = {}
                # A damaged one was reported when it was read first.
                with suppress(*_DECODING_ERRORS):
                    self._decoder(row.layout, track.event, None).add([row.numbers], of_row)
                latest |= of_row
            for name, column in track.columns.items():
                if name in found:
                    continue
                found[name] = describe_signal(name, track.event) | {
                    "count": sum(column.numbers),
                    "bad_count": sum(column.bads),
                    "latest": _latest(latest, name, column),
                }
        return sorted(found.values(), key=signal_order)

    def series(
        self,
        connection: sqlite3.Connection,
        names: Sequence[str],
        window: Window,
    ) -> dict[str, Any]:
        """The series of these signals, as `RunReader.series` returns them."""
        if window.axis == "tokens" and not self._counts_tokens():
            window = window._replace(axis="step", start=None, end=None)
        found: dict[str, Any] = {}
        for track in self.tracks.values():
            of_track = [name for name in names if name in track.columns and name not in found]
            if not of_track:
                continue
            buckets = window.select(self._extents(track, window.axis))
            shown = self._detail(connection, track, buckets, of_track, window)
            if shown is None:
                shown = track
            else:
                buckets = window.select(self._extents(shown, window.axis))
            extents = self._extents(shown, window.axis)
            groups = shown.group(buckets, window.points)
            xs = [extents[last - 1][1] for _, last in groups.ranges()]
            for name in of_track:
                if name in shown.columns:
                    found[name] = shown.points(name, groups, xs)
        latest = {each["name"]: each["latest"] for each in self.signals()} if found else {}
        for name, points in found.items():
            points["last"] = latest.get(name)
        return {
            "axis": window.axis,
            "last_id": self.last_id,
            "trainings": [*self._trainings],
            "series": {name: found[name] for name in names if name in found},
        }

    def step_at(self, time: float) -> int | None:
        """The step of the run at that time, in seconds since the epoch; None before the first.

        Of a long run, that of the bucket of the time.
        """
        spans = self._track(Event.STEP.value).spans
        at = bisect_right(spans, time, key=lambda span: span.time)
        if at < len(spans) and spans[at].first_time <= time:
            return spans[at].first_step
        return spans[at - 1].step if at else None

    def rows_since(self, connection: sqlite3.Connection, row_id: int, limit: int) -> dict[str, Any]:
        """The rows after `row_id`, as `RunReader.rows_since` returns them."""
        rows = [*_read(connection, _NEW_ROWS_SQL, row_id, limit)]
        charted = [row for row in rows if row.event in _CHARTED]
        values: dict[str, list[float | None]] = {}
        ranks: dict[str, dict[str, list[float | None]]] = {}
        bad: dict[str, list[int]] = {}
        for at, row in enumerate(charted):
            found: Found = {}
            self._decode(row.layout, Event(row.event), [row.numbers], found)
            for name, (summary,) in found.items():
                column = values.setdefault(name, [None] * len(charted))
                if summary.number:
                    column[at] = summary.mean
                if summary.bad:
                    bad.setdefault(name, []).append(at)
                if summary.low <= summary.high or summary.worst != NO_RANK:
                    if name not in ranks:
                        ranks[name] = {each: [None] * len(charted) for each in _RANK_RANGE}
                    of_ranks = (summary.low, summary.high, summary.worst)
                    for each, number in zip(_RANK_RANGE, of_ranks, strict=True):
                        ranks[name][each][at] = number if isfinite(number) else None
        tokens = None
        if self._counts_tokens():
            tokens = [self._tokens_at(row.id) for row in charted]
        return {
            "last_id": rows[-1].id if rows else row_id,
            "step": [row.step for row in charted],
            "time": [row.time for row in charted],
            "attempt": [self._segment_at(row.id) for row in charted],
            "trainings": [*self._trainings],
            "tokens": tokens,
            "values": values,
            "ranks": ranks,
            "bad": bad,
        }

    def _segment_at(self, row_id: int) -> int:
        """The segment of that row."""
        spans = self._track(Event.STEP.value).spans
        at = bisect_left(spans, row_id, key=lambda span: span.last_id)
        return spans[at].segment if at < len(spans) else self._segment

    def _tokens_at(self, row_id: int) -> float:
        """Tokens of the run up to that row, in proportion to the rows of its bucket."""
        spans = self._track(Event.STEP.value).spans
        at = min(bisect_left(spans, row_id, key=lambda span: span.last_id), len(spans) - 1)
        span, before = spans[at], spans[at - 1].tokens if at else 0.0
        rows = span.last_id - span.first_id + 1
        share = min(max((row_id - span.first_id + 1) / rows, 0.0), 1.0)
        return min(before, span.tokens) + share * (span.tokens - min(before, span.tokens))

    def rank_grid(self, signal: str, window: Window) -> dict[str, Any]:
        """The values of ranks, as `RunReader.rank_grid` returns them; after `refresh`."""
        grid = self._rank_grid
        if grid is None:
            return grid_to_dict(signal, (), ())
        signals = grid.signals()
        columns: list[tuple[int, RankMeans]] = []
        if signal in signals:
            track = self._track(Event.STEP.value)
            buckets = window.select(self._extents(track, "step"))
            if len(buckets) * track.size <= window.points * MAX_ROWS_PER_COLUMN:
                rows = [
                    row
                    for first, last in _ranges(track.spans, buckets)
                    for row in grid.rows(
                        signal, track.spans[first].first_id, track.spans[last].last_id
                    )
                    if window.has_step(row.step)
                ]
                width = max(1, -(-len(rows) // window.points))
                parts = (rows[at : at + width] for at in range(0, len(rows), width))
                columns = [(part[-1].step, mean_by_rank(part)) for part in parts]
            else:
                groups = track.group(buckets, window.points).ranges()
                for first, end in groups:
                    ids = track.spans[first].first_id, track.spans[end - 1].last_id
                    means = grid.column(signal, *ids, is_final=end < len(track.spans))
                    columns.append((track.spans[end - 1].step, means))
        return grid_to_dict(signal, signals, columns)

    def _counts_tokens(self) -> bool:
        steps = self.tracks.get(Event.STEP.value)
        return steps is not None and bool(steps.spans) and steps.spans[-1].tokens > 0.0

    def _extents(self, track: Track, axis: str) -> list[tuple[float, float]]:
        """Where on the axis each bucket begins and ends."""
        if axis == "time":
            return [(span.first_time, span.time) for span in track.spans]
        if axis == "step":
            return [(span.first_step, span.step) for span in track.spans]
        steps = self._track(Event.STEP.value).spans
        if track.event is Event.STEP:
            last = [span.tokens for span in track.spans]
        else:
            # Of the steps that were before.
            ids = [span.last_id for span in steps]
            places = [bisect_right(ids, span.last_id) for span in track.spans]
            last = [steps[at - 1].tokens if at else 0.0 for at in places]
        first = self._tokens_before(steps, track)
        return [(min(low, high), high) for low, high in zip([first, *last], last, strict=False)]

    @staticmethod
    def _tokens_before(steps: Sequence[Span], track: Track) -> float:
        """Tokens of the run before the first bucket of a track."""
        if not track.spans or not steps:
            return 0.0
        at = bisect_left([span.last_id for span in steps], track.spans[0].first_id)
        return steps[at - 1].tokens if at else 0.0

    def _detail(
        self,
        connection: sqlite3.Connection,
        track: Track,
        buckets: Sequence[int],
        names: Sequence[str],
        window: Window,
    ) -> Track | None:
        """The rows of a window in smaller buckets, if those of the track are too few for it."""
        number = len(buckets) * track.size
        if track.size == 1 or 2 * len(buckets) >= window.points or number > self.max_detail_rows:
            return None
        wanted = frozenset({*names, "tokens", "tokens_seen"} if window.axis == "tokens" else names)

        def decode(number: int, event: Event, blobs: list[bytes], found: Found) -> None:
            self._decode(number, event, blobs, found, wanted)

        detailed = Track(track.event, decode, -(-number // window.points))
        for first, last in _ranges(track.spans, buckets):
            detailed.tokens = track.spans[first - 1].tokens if first else 0.0
            segment = track.spans[first].segment
            query = (track.event.value, track.spans[first].first_id, track.spans[last].last_id)
            rows = _read(connection, _DETAIL_ROWS_SQL, *query)
            blocks = [*_read(connection, _DETAIL_BLOCKS_SQL, *query)]
            for row in merge(rows, blocks) if blocks else rows:
                if window.overlaps(row):
                    detailed.add(row, segment)
            detailed.close_bucket(segment)
        return detailed


class Window(NamedTuple):
    """A part of an axis (`step`, `time` or `tokens`); None is no limit.

    It is shown with at most `points` points.
    """

    axis: str = "step"
    start: float | None = None
    end: float | None = None
    points: int = 800

    def select(self, extents: Sequence[tuple[float, float]]) -> list[int]:
        """Which of the extents overlap the window."""
        low = -inf if self.start is None else self.start
        high = inf if self.end is None else self.end
        return [at for at, (first, last) in enumerate(extents) if last >= low and first <= high]

    def has_step(self, step: int) -> bool:
        """Whether the step is in the window, which is one of steps."""
        is_after = self.start is None or step >= self.start
        return is_after and (self.end is None or step <= self.end)

    def overlaps(self, row: StoredRow) -> bool:
        """Whether a row or block does; of tokens it is not known."""
        if self.axis == "tokens":
            return True
        is_time = self.axis == "time"
        first, last = (row.first_time, row.time) if is_time else (row.first_step, row.step)
        is_after = self.start is None or last >= self.start
        return is_after and (self.end is None or first <= self.end)


def _read(connection: sqlite3.Connection, query: str, *values: object) -> Iterator[StoredRow]:
    return map(StoredRow._make, connection.execute(query, values))


_CHARTED = frozenset(event.value for event in CHARTED_EVENTS)


def _latest(latest: Found, name: str, column: Column) -> float | None:
    """The newest value, or if the newest row has none the mean of the newest bucket with one.

    None if it is not finite.
    """
    if name in latest:
        summary = latest[name][0]
        return summary.mean if summary.number else None
    buckets = zip(column.numbers[::-1], column.means[::-1], column.bads[::-1], strict=True)
    return next((mean if count else None for count, mean, bad in buckets if count or bad), None)


def _ranges(spans: Sequence[Span], buckets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of the buckets that follow each other in one segment."""
    first: int | None = None
    previous = 0
    for at in buckets:
        if first is not None and (
            at != previous + 1 or spans[at].segment != spans[previous].segment
        ):
            yield first, previous
            first = None
        first = at if first is None else first
        previous = at
    if first is not None:
        yield first, previous
