"""The committed dashboards, panel by panel and query by query."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "grafana" / "dashboards"
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}

VARIABLES = ("$run", "$__rate_interval", "$__range", "$__interval")


def panels(dashboard: dict) -> Iterator[dict]:
    """Every panel, those folded away under a row included; rows themselves left out."""
    for panel in dashboard["panels"]:
        yield from panel.get("panels", ())
        if panel["type"] != "row":
            yield panel


def queries() -> Iterator[tuple[str, dict]]:
    """Every query and the panel it is on, by name."""
    for name, dashboard in DASHBOARDS.items():
        for panel in panels(dashboard):
            for target in panel["targets"]:
                yield f"{name}: {panel['title']} {target['refId']}", target


def filled_in(expr: str, variables: Mapping[str, str]) -> str:
    """The query as Grafana would send it."""
    for name in VARIABLES:
        expr = expr.replace(name, variables[name])
    return expr
