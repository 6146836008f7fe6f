"""The statistics of each layer over the steps of a run, for a heat map."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import inf, isfinite, isinf
from typing import Any, NamedTuple

from sentinel.signals.layer_statistics import HISTOGRAM_KEY, LAYER_STATISTICS
from sentinel.store.record_rows import LayoutTable, RowLayout, decompressed

_ROWS_SQL = """
select id, step, layout from step where event <> 'step' and event = 'layers' order by id
"""
_PART_SQL = "select substr(vals, ?, ?) from step where id = ?"


class _Place(NamedTuple):
    """Where the rows of a layout have the values of one statistic: layers by number in the row."""

    layers: Mapping[int, str]

    def values(self, connection: sqlite3.Connection, row_id: int) -> dict[str, float]:
        """The values of that row by layer. Raises ValueError if the row is damaged."""
        if not self.layers:
            return {}
        # Those of one statistic follow each other, as `layer_values` orders them.
        first, end = min(self.layers), max(self.layers) + 1
        blob = _part(connection, row_id, 8 * first, 8 * (end - first))
        try:
            numbers = struct.unpack(f"<{end - first}d", blob)
        except struct.error as error:
            raise ValueError(f"a row of layers does not fit its layout: {error}") from error
        return {layer: numbers[at - first] for at, layer in self.layers.items()}


class _Column(NamedTuple):
    """The means of the finite values of some rows by layer, and the layers with infinite ones."""

    means: Mapping[str, float]
    bad: AbstractSet[str]

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, float]]) -> _Column:
        values: dict[str, list[float]] = {}
        bad = set()
        for row in rows:
            for layer, value in row.items():
                if isfinite(value):
                    values.setdefault(layer, []).append(value)
                elif isinf(value):
                    # NaN is a value that is undefined at this step.
                    bad.add(layer)
        return cls({layer: sum(each) / len(each) for layer, each in values.items()}, bad)


def has_layers(connection: sqlite3.Connection) -> bool:
    """Whether any statistics of layers are stored."""
    return connection.execute(f"{_ROWS_SQL} limit 1").fetchone() is not None


def layer_grid(
    connection: sqlite3.Connection,
    statistic: str,
    start: float | None,
    end: float | None,
    columns: int,
) -> dict[str, Any]:
    """The answer of `RunReader.layers`. Raises ValueError, KeyError if a row is damaged."""
    low, high = -inf if start is None else start, inf if end is None else end
    rows: list[tuple[int, int, int]] = []
    for row in connection.execute(_ROWS_SQL):
        # A resumed run measures steps again.
        while rows and rows[-1][1] >= row[1]:
            rows.pop()
        rows.append(row)
    rows = [row for row in rows if low <= row[1] <= high]
    table = LayoutTable(connection)
    layouts = {number: table.get(number) for number in dict.fromkeys(row[2] for row in rows)}
    places = {number: _place_of(layout, statistic) for number, layout in layouts.items()}
    width = max(1, -(-len(rows) // columns))
    parts = [rows[at : at + width] for at in range(0, len(rows), width)]
    parted = [
        _Column.of(places[layout].values(connection, row_id) for row_id, _, layout in part)
        for part in parts
    ]
    layers = [*dict.fromkeys(layer for each in places.values() for layer in each.layers.values())]
    names = {name.partition("/")[0] for layout in layouts.values() for name in layout.names}
    return {
        "statistic": statistic,
        "statistics": [name for name in LAYER_STATISTICS if name in names],
        "layers": layers,
        "x": [part[-1][1] for part in parts],
        "values": [[each.means.get(layer) for each in parted] for layer in layers],
        "bad": [[n for n, each in enumerate(parted) if layer in each.bad] for layer in layers],
        "histograms": _newest_histograms(connection, rows, layouts),
    }


def _place_of(layout: RowLayout, statistic: str) -> _Place:
    prefix = f"{statistic}/"
    names = enumerate(layout.names)
    return _Place({at: n.removeprefix(prefix) for at, n in names if n.startswith(prefix)})


def _newest_histograms(
    connection: sqlite3.Connection,
    rows: Sequence[tuple[int, int, int]],
    layouts: Mapping[int, RowLayout],
) -> dict[str, Any]:
    if not rows:
        return {"x": None, "layer": {}}
    row_id, step, layout = rows[-1]
    attributes = decompressed(_part(connection, row_id, layouts[layout].numbers.size, -1))
    return {"x": step, "layer": json.loads(attributes.get(HISTOGRAM_KEY, "{}"))}


def _part(connection: sqlite3.Connection, row_id: int, offset: int, size: int) -> bytes:
    """`size` bytes of the row's values from `offset` on, or all of them."""
    length = size if size >= 0 else 1 << 30
    row = connection.execute(_PART_SQL, (offset + 1, length, row_id)).fetchone()
    return b"" if row is None else bytes(row[0])
