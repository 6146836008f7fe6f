"""Panels and queries of the committed dashboards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "grafana" / "dashboards"
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}

VARIABLES = (
    *("$cluster", "$algorithm", "$run", "$attempt", "$rank"),
    *("$__rate_interval", "$__range"),
)


def panels(dashboard: dict) -> Iterator[dict]:
    """Every panel, also in collapsed rows, without the rows themselves."""
    for panel in dashboard["panels"]:
        yield from panel.get("panels", ())
        if panel["type"] != "row":
            yield panel


def queries() -> Iterator[tuple[str, dict]]:
    """Every query, with the name of its panel."""
    for name, dashboard in DASHBOARDS.items():
        for panel in panels(dashboard):
            for target in panel.get("targets", ()):
                yield f"{name}: {panel['title']} {target['refId']}", target


def with_variables(expr: str, variables: Mapping[str, str]) -> str:
    """The query with its variables replaced, as Grafana sends it."""
    for name in VARIABLES:
        expr = expr.replace(name, variables[name])
    return expr
