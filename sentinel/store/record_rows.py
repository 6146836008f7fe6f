"""Packs combined records as rows of the history: a layout, stored once, and a blob of numbers.

A layout holds what many rows share: the names of the values, the attributes, and how each spread is
stored. Values are float64 and exact. Of `RANK_VALUE_SIGNALS` the value of each rank is stored, and
their spread is computed from it again: exactly, but for step times, which are float32. Of other
signals mean, minimum, maximum and the rank with the maximum are stored, as float32: count is in the
layout, and other statistics are NaN when read. The value of a single rank is its whole spread.
Spreads with ranks that differ or are not finite are rare, and are stored in full, as JSON.

    float64 * names, then by spread: float32 or float64 * ranks, minimum, maximum and place of the
    highest, or mean (if it is not the value), minimum, maximum and rank; then the JSON of full
    spreads by name, if there are any

The range of stored values of ranks is for charts, which read it without the values. A LAYERS row
has its attributes, compressed JSON, behind the numbers.
"""

from __future__ import annotations

import json
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from functools import cached_property
from math import nan
from operator import attrgetter
from typing import Any

from sentinel.aggregate.combine import compute_spread, with_mismatch
from sentinel.model.record import WHOLE_RUN, Event, RankMismatch, Record, Spread

MAX_CACHED_LAYOUTS = 1024
"""Layouts in memory; above it all are forgotten and read again when needed."""

_SINGLE, _RANKS, _RANKS_MISMATCH, _RANGE, _RANGE_FLOAT64, FULL_SPREAD = range(6)
"""How a spread is stored; the numbers are part of the format."""
RANK_SPREADS = frozenset({_RANKS, _RANKS_MISMATCH})
RANGE_SPREADS = frozenset({_RANGE, _RANGE_FLOAT64})
"""Kinds that hold the value of each rank, and a range over the ranks."""

_RANGE_NUMBERS = 3

_FIELDS = tuple(f.name for f in fields(Spread) if f.compare)
_field_values = attrgetter(*_FIELDS)

SpreadLayout = tuple[str, int, int, str, tuple[int, ...]]
"""Name, kind, count, struct format and the ranks (of the kinds that store them)."""


@dataclass(frozen=True)
class RowLayout:
    """What rows with the same names, attributes and kinds of spread share."""

    names: tuple[str, ...]
    attributes: tuple[tuple[str, str], ...] = ()
    spreads: tuple[SpreadLayout, ...] = ()

    @cached_property
    def numbers(self) -> struct.Struct:
        """The format of the numbers."""
        spreads = "".join([each[3] for each in self.spreads])
        return struct.Struct(f"<{len(self.names)}d{spreads}")

    def unpack(self, blob: bytes) -> tuple[Any, ...]:
        """The numbers of a row. Raises ValueError for a blob of another layout."""
        try:
            return self.numbers.unpack_from(blob)
        except struct.error as error:
            raise ValueError(f"a row of the history does not fit its layout: {error}") from error

    def to_json(self) -> str:
        """The layout as it is stored."""
        return json.dumps([self.names, self.attributes, self.spreads], separators=(",", ":"))


def layout_from_json(text: str) -> RowLayout:
    """The layout that `RowLayout.to_json` wrote."""
    names, attributes, spreads = json.loads(text)
    return RowLayout(
        tuple(names),
        tuple((name, value) for name, value in attributes),
        tuple((name, kind, count, fmt, tuple(ranks)) for name, kind, count, fmt, ranks in spreads),
    )


@dataclass
class LayoutTable:
    """Rows of the table `layout`, with those in use in memory.

    Make a new one after a rollback: it may know layouts that were never stored.
    """

    connection: sqlite3.Connection
    _id_by_layout: dict[RowLayout, int] = field(default_factory=dict)
    _layout_by_id: dict[int, RowLayout] = field(default_factory=dict)

    def add(self, layout: RowLayout) -> int:
        """The id of the layout, which is stored if it is new."""
        known = self._id_by_layout.get(layout)
        if known is None:
            body = layout.to_json()
            self.connection.execute("insert or ignore into layout(body) values(?)", [body])
            query = "select id from layout where body = ?"
            ((known,),) = self.connection.execute(query, [body]).fetchall()
            self._remember(known, layout)
        return known

    def get(self, number: int) -> RowLayout:
        """The layout with that id. Raises KeyError, ValueError if it is missing or damaged."""
        known = self._layout_by_id.get(number)
        if known is None:
            query = "select body from layout where id = ?"
            row = self.connection.execute(query, [number]).fetchone()
            if row is None:
                raise KeyError(number)
            known = layout_from_json(row[0])
            self._remember(number, known)
        return known

    def delete_unused(self, numbers: Iterable[int]) -> None:
        """Delete those of these layouts that no row has any more."""
        for number in numbers:
            self.connection.execute(_DELETE_UNUSED_SQL, [number])
            layout = self._layout_by_id.pop(number, None)
            if layout is not None:
                self._id_by_layout.pop(layout, None)

    def _remember(self, number: int, layout: RowLayout) -> None:
        if len(self._layout_by_id) >= MAX_CACHED_LAYOUTS:
            self._layout_by_id.clear()
            self._id_by_layout.clear()
        self._layout_by_id[number] = layout
        self._id_by_layout[layout] = number


_DELETE_UNUSED_SQL = """
delete from layout where id = ?1
    and not exists (select 1 from step where layout = ?1)
    and not exists (select 1 from block where layout = ?1)
"""


@dataclass
class RecordPacker:
    """Packs records of one run.

    `exact` stores all numbers as float64. `own_means` are signals whose value is not the mean over
    the ranks, `float64_signals` those of which a rank's value is no float32, as seen so far: were
    it decided for each row, the number of layouts would explode.
    """

    exact: bool = False
    own_means: set[str] = field(default_factory=set)
    float64_signals: set[str] = field(default_factory=set)

    def pack(self, record: Record) -> tuple[RowLayout, bytes]:
        """The layout and the blob of the record."""
        try:
            return self._pack(record, exact=self.exact)
        except OverflowError:  # a spread beyond the range of float32
            return self._pack(record, exact=True)

    def _pack(self, record: Record, *, exact: bool) -> tuple[RowLayout, bytes]:
        numbers = [*record.values.values()]
        full: dict[str, Any] = {}
        if record.event is Event.LAYERS:
            # Histograms differ in every row: in the layout they would make it one of a single row.
            layout = RowLayout(tuple(record.values))
            return layout, layout.numbers.pack(*numbers) + _compressed(record.attributes)
        spreads: list[SpreadLayout] = []
        for name, spread in record.spread.items():
            kind = _spread_kind(spread, record.values.get(name), exact=exact)
            ranks: tuple[int, ...] = ()
            layout_format = ""
            if kind == _SINGLE:
                ranks = (spread.bad_ranks or (spread.max_rank,))[:1]
            elif kind in RANK_SPREADS:
                ranks, number = spread.ranks, self._rank_number(name, spread, exact=exact)
                layout_format = f"{len(ranks)}{number}2{number}b"
                worst = ranks.index(spread.max_rank) if spread.max_rank in ranks else -1
                numbers += (*spread.rank_values, spread.min, spread.max, worst)
            elif kind == FULL_SPREAD:
                full[name] = _spread_to_json(spread)
            else:
                layout_format = self._add_range(numbers, name, spread, record.values, kind)
            is_range = kind in RANGE_SPREADS
            spreads.append((name, kind, spread.count if is_range else 0, layout_format, ranks))
        layout = RowLayout(tuple(record.values), tuple(record.attributes.items()), tuple(spreads))
        blob = layout.numbers.pack(*numbers)
        return layout, blob + json.dumps(full).encode() if full else blob

    def _rank_number(self, name: str, spread: Spread, *, exact: bool) -> str:
        """The struct format of one rank's value."""
        if not exact and name not in self.float64_signals:
            if name == "step_time":
                return "f"
            ranks = struct.Struct(f"{len(spread.ranks)}f")
            # Compared as text: NaN equals itself.
            if repr(ranks.unpack(ranks.pack(*spread.rank_values))) == repr(spread.rank_values):
                return "f"
            self.float64_signals.add(name)
        return "d"

    def _add_range(
        self,
        numbers: list[float],
        name: str,
        spread: Spread,
        values: Mapping[str, float],
        kind: int,
    ) -> str:
        """Add the numbers of a range; return their format."""
        value = values.get(name)
        if value != spread.mean:
            self.own_means.add(name)
        number = "d" if kind == _RANGE_FLOAT64 else "f"
        rank = "B" if spread.max_rank < 1 << 8 else "H" if spread.max_rank < 1 << 16 else "I"
        if name in self.own_means:
            numbers += (spread.mean, spread.min, spread.max, spread.max_rank)
            return f"3{number}{rank}"
        numbers += (spread.min, spread.max, spread.max_rank)
        return f"2{number}{rank}"


def unpack(run: str, layout: RowLayout, blob: bytes, header: Sequence[Any]) -> Record:
    """The record of a row: `header` is attempt, step, time and event.

    Raises ValueError or another error of a decoder if the row is damaged.
    """
    attempt, step, time, event = header
    numbers = layout.unpack(blob)
    values = dict(zip(layout.names, numbers, strict=False))
    rest = blob[layout.numbers.size :]
    attributes = dict(layout.attributes)
    if event == Event.LAYERS.value:
        attributes, rest = decompressed(rest), b""
    full = json.loads(rest) if rest else {}
    spread: dict[str, Spread] = {}
    at = len(layout.names)
    for entry in layout.spreads:
        name, kind, _, layout_format, ranks = entry
        if kind == FULL_SPREAD:
            spread[name] = spread_from_json(full[name])
            continue
        count = len(ranks) if kind in RANK_SPREADS else _number_count(layout_format)
        spread[name] = _unpack_spread(entry, values.get(name, nan), numbers[at : at + count])
        at += count
        if kind in RANK_SPREADS and split_rank_format(layout_format)[1]:
            at += _RANGE_NUMBERS
    return Record(
        run=run,
        rank=WHOLE_RUN,
        step=step,
        time=time,
        event=Event(event),
        values=values,
        attributes=attributes,
        spread=spread,
        attempt=attempt,
    )


def _compressed(attributes: Mapping[str, str]) -> bytes:
    return zlib.compress(json.dumps(dict(attributes)).encode(), 1)


def decompressed(rest: bytes) -> dict[str, str]:
    """The attributes of a LAYERS row, from what follows its numbers. Raises ValueError."""
    try:
        found: dict[str, str] = json.loads(zlib.decompress(rest))
    except zlib.error as error:
        raise ValueError(f"the histograms of a row cannot be decoded: {error}") from error
    return found


def _spread_kind(spread: Spread, value: float | None, *, exact: bool) -> int:
    if value is not None and spread.count + len(spread.bad_ranks) == 1:
        # Beyond this, a rank's value is not the run's: a weighted mean may round.
        return _SINGLE if spread.bad_ranks or value == spread.mean else FULL_SPREAD
    if spread.ranks:
        return _RANKS if spread.mismatch is None else _RANKS_MISMATCH
    if spread.bad_ranks or spread.mismatch is not None or spread.max_rank < 0:
        return FULL_SPREAD
    return _RANGE_FLOAT64 if exact else _RANGE


def split_rank_format(layout_format: str) -> tuple[str, str]:
    """The formats of the values of the ranks and of their range, which earlier versions have not.

    >>> split_rank_format("64f2fb"), split_rank_format("8d")
    (('64f', '2fb'), ('8d', ''))
    """
    end = len(layout_format) - len(layout_format.lstrip("0123456789")) + 1
    return layout_format[:end], layout_format[end:]


def _number_count(layout_format: str) -> int:
    return int(layout_format[0]) + 1 if layout_format else 0


def _unpack_spread(entry: SpreadLayout, value: float, numbers: Sequence[Any]) -> Spread:
    _, kind, count, _, ranks = entry
    if kind == _SINGLE:
        return compute_spread(ranks, (value,))
    if kind in RANK_SPREADS:
        spread = compute_spread(ranks, numbers, keep_values=True)
        return with_mismatch(spread, ranks, numbers) if kind == _RANKS_MISMATCH else spread
    *own_mean, minimum, maximum, max_rank = numbers
    mean = own_mean[0] if own_mean else value
    return Spread(count, mean, minimum, maximum, mean * count, nan, WHOLE_RUN, max_rank)


def _spread_to_json(spread: Spread) -> list[Any]:
    # A mismatch is rare, so the last column is left out without one.
    row = _field_values(spread)
    return [*row[:-1]] if spread.mismatch is None else [*row[:-1], astuple(spread.mismatch)]


def spread_from_json(row: Sequence[Any]) -> Spread:
    """The spread of which a row holds every statistic, and the mismatch if there is one."""
    values = dict(zip(_FIELDS, row, strict=False))
    values["bad_ranks"] = tuple(values["bad_ranks"])
    if "mismatch" in values:
        majority_value, count, ranks, *has_majority = values["mismatch"]
        values["mismatch"] = RankMismatch(
            majority_value, count, tuple(map(tuple, ranks)), *has_majority
        )
    return Spread(**values)
