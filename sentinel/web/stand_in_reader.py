# ruff: noqa: ANN001, ANN201, ARG002
# mypy: ignore-errors
"""A reader of a run until `sentinel.store.run_reader` is there."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from math import isfinite
from pathlib import Path
from typing import Any

from sentinel.model.record import Event
from sentinel.store.database import connect
from sentinel.store.history import History, read_incidents
from sentinel.store.samples import newest_samples


class StandInReader:
    """See the contract of RunReader."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _rows(self, first: int = 0) -> list[tuple[int, Any]]:
        with closing(connect(self._path)) as connection:
            rows = list(History(connection).rows(first))
        return [row for row in rows if row[1].event in (Event.STEP, Event.EVAL, Event.HEARTBEAT)]

    def last_row(self) -> int:
        with closing(connect(self._path)) as connection:
            return connection.execute("select coalesce(max(id), 0) from step").fetchone()[0]

    def signals(self) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for _, record in self._rows():
            for name, value in record.values.items():
                entry = found.setdefault(
                    name,
                    {
                        "name": name,
                        "label": name,
                        "unit": "",
                        "group": "main",
                        "help": "",
                        "event": record.event.value,
                        "count": 0,
                        "is_monitored": True,
                    },
                )
                entry["count"] += 1
                entry["latest"] = value if isfinite(value) else None
        return [*found.values()]

    def series(self, names, *, points=800, axis="step", start=None, end=None):
        series = {}
        rows = self._rows()
        for name in names:
            pairs = [
                (r.time if axis == "time" else r.step, r.values[name])
                for _, r in rows
                if name in r.values
            ][-points:]
            xs, ys = [x for x, _ in pairs], [y if isfinite(y) else None for _, y in pairs]
            series[name] = {
                "x": xs,
                "mean": ys,
                "min": ys,
                "max": ys,
                "rank_min": None,
                "rank_max": None,
                "worst_rank": None,
                "is_raw": True,
                "count": len(xs),
                "bad": [],
                "attempt": [0] * len(xs),
            }
        return {"axis": axis, "last_id": self.last_row(), "series": series}

    def rank_grid(self, signal, *, columns=240, start=None, end=None):
        return {"signal": signal, "signals": [], "ranks": [], "x": [], "values": []}

    def thresholds(self, names):
        return {}

    def timeline(self):
        return {"detectors": [], "events": []}

    def incidents(self):
        return read_incidents(self._path)

    def cases(self):
        return []

    def samples(self, step=None, limit=20, search="", before=None):
        return newest_samples(self._path, step, limit)

    def sample_steps(self):
        return []

    def deliveries(self, limit=200):
        return []

    def metadata(self):
        return {}

    def media(self, kind=None, limit=200):
        return []

    def media_body(self, media_id):
        raise KeyError(media_id)

    def rows_since(self, row_id, limit=5000):
        rows = self._rows(row_id + 1)[:limit]
        values = defaultdict(lambda: [None] * len(rows))
        for index, (_, record) in enumerate(rows):
            for name, value in record.values.items():
                values[name][index] = value if isfinite(value) else None
        return {
            "last_id": rows[-1][0] if rows else self.last_row(),
            "step": [r.step for _, r in rows],
            "time": [r.time for _, r in rows],
            "attempt": [r.attempt for _, r in rows],
            "tokens": None,
            "values": dict(values),
        }
