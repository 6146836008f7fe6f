"""The values of each rank over the steps of a run, for a heat map: a mean per rank and column."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

from sentinel.store.record_rows import RANK_SPREADS, LayoutTable, RowLayout, split_rank_format
from sentinel.store.storage_monitor import reading_storage

MAX_CACHED_COLUMNS = 2048
"""Columns in memory; above it all are forgotten and read again when needed."""

RankMeans = dict[int, float]
"""The mean of each rank, of those that have a finite value."""


class _Place(NamedTuple):
    """Where a row has the values of the ranks, in bytes."""

    offset: int
    size: int
    number: str
    ranks: tuple[int, ...]


class RankRow(NamedTuple):
    """The step of a row and the values of its ranks."""

    step: int
    place: _Place
    values: bytes


@dataclass
class RankGrid:
    """Reads and remembers the columns of the heat maps of one run."""

    layouts: LayoutTable
    _columns: dict[tuple[str, int, int], RankMeans] = field(default_factory=dict)

    def signals(self) -> list[str]:
        """The signals of which the values of each rank are stored."""
        names = (
            {name for name, kind, *_ in layout.spreads if kind in RANK_SPREADS}
            for _, layout in self._all_layouts()
        )
        return sorted(set().union(*names))

    def column(self, signal: str, first_id: int, last_id: int, *, is_final: bool) -> RankMeans:
        """The means of the rows with these ids, which are remembered if there will be no others."""
        key = (signal, first_id, last_id)
        found = self._columns.get(key)
        if found is None:
            found = mean_by_rank(self.rows(signal, first_id, last_id))
            if is_final:
                if len(self._columns) >= MAX_CACHED_COLUMNS:
                    self._columns.clear()
                self._columns[key] = found
        return found

    def rows(self, signal: str, first_id: int, last_id: int) -> list[RankRow]:
        """The rows of steps with these ids, in order."""
        found: list[tuple[int, RankRow]] = []
        for place, numbers in self._places(signal).items():
            marks = ",".join("?" * len(numbers))
            query = (
                "select id, step, substr(vals, ?, ?) from step where id between ? and ?"  # noqa: S608
                f" and event = 'step' and layout in ({marks}) order by id"
            )
            bounds = (place.offset + 1, place.size, first_id, last_id)
            rows = self.layouts.connection.execute(query, (*bounds, *numbers))
            found += [(number, RankRow(step, place, values)) for number, step, values in rows]
        return [row for _, row in sorted(found, key=lambda each: each[0])]

    def _places(self, signal: str) -> dict[_Place, list[int]]:
        """Where the layouts with the signal have its values."""
        found: dict[_Place, list[int]] = {}
        for number, layout in self._all_layouts():
            place = _place_of(layout, signal)
            if place is not None:
                found.setdefault(place, []).append(number)
        return found

    def _all_layouts(self) -> list[tuple[int, RowLayout]]:
        rows = self.layouts.connection.execute("select id from layout").fetchall()
        with reading_storage():
            return [(number, self.layouts.get(number)) for (number,) in rows]


def mean_by_rank(rows: Iterable[RankRow]) -> RankMeans:
    """The mean of the finite values of each rank in these rows."""
    parts: dict[_Place, list[bytes]] = {}
    for row in rows:
        parts.setdefault(row.place, []).append(row.values)
    totals: dict[int, tuple[float, int]] = {}
    for place, blobs in parts.items():
        whole = [blob for blob in blobs if len(blob) == place.size]
        values = array(place.number, b"".join(whole)).tolist()
        count = len(place.ranks)
        for at, rank in enumerate(place.ranks):
            total, number = _sum_finite(values[at::count])
            before, earlier = totals.get(rank, (0.0, 0))
            totals[rank] = before + total, earlier + number
    return {rank: total / number for rank, (total, number) in totals.items() if number}


def _sum_finite(values: Sequence[float]) -> tuple[float, int]:
    total = sum(values)
    if isfinite(total):
        return total, len(values)
    finite = [value for value in values if isfinite(value)]
    return sum(finite), len(finite)


def _place_of(layout: RowLayout, signal: str) -> _Place | None:
    offset = 8 * len(layout.names)
    for name, kind, _, layout_format, ranks in layout.spreads:
        if name == signal and kind in RANK_SPREADS:
            values_format, _ = split_rank_format(layout_format)
            size = struct.calcsize(f"<{values_format}")
            return _Place(offset, size, values_format[-1], ranks)
        offset += struct.calcsize(f"<{layout_format}")
    return None


def grid_to_dict(
    signal: str, signals: Sequence[str], columns: Sequence[tuple[int, RankMeans]]
) -> dict[str, Any]:
    """The answer of `RunReader.rank_grid`: `columns` have their step and means."""
    columns = [each for each in columns if each[1]]
    ranks = sorted(set().union(*(means for _, means in columns)))
    return {
        "signal": signal,
        "signals": list(signals),
        "ranks": ranks,
        "x": [step for step, _ in columns],
        "values": [[means.get(rank) for _, means in columns] for rank in ranks],
    }
