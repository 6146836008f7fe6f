"""`sentinel compare` in the terminal."""

from __future__ import annotations

from sentinel.cli._comparison_tables import _run_rows
from sentinel.store.verdict import STATUSES

RUN = dict.fromkeys(("host", "framework", "algorithm", "model", "note", "seconds"), "") | {
    "state": "finished",
    "step": 9,
    "cases": 0,
}


def test_every_health_has_its_colour():
    rows = {
        name: cells for name, *cells in _run_rows([RUN | {"health": each} for each in STATUSES])
    }

    assert [str(cell.style) for cell in rows["Health"]] == [
        "bold red",
        "bold red",
        "yellow",
        "green",
        "green",
        "dim",
    ]
