"""The queries of the rules and of the dashboards mean the same in Prometheus 2.42 and 3.

promtool 2.42 checks their syntax. Source of the changes in Prometheus 3: prometheus.io, "Prometheus
3.0 migration guide"; read in November 2026.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
OPERATORS = {"by", "without", "on", "ignoring", "group_left", "group_right", "or", "and", "unless"}
MODIFIERS = {"start", "end"}
AGGREGATIONS = {"sum", "min", "max", "avg", "count", "quantile", "bottomk", "topk"}
FUNCTIONS = {
    *("avg_over_time", "count_over_time", "last_over_time", "max_over_time", "min_over_time"),
    *("histogram_quantile", "increase", "label_replace", "rate", "round", "scalar", "time"),
    "vector",
}
"""Functions that are the same in 2.42 and 3."""
MIN_WINDOW_SECONDS = 300.0
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def expressions(value):
    if isinstance(value, dict):
        for key, below in value.items():
            is_text = key == "expr" and isinstance(below, str)
            yield from [below] if is_text else expressions(below)
    elif isinstance(value, list):
        for below in value:
            yield from expressions(below)


def differences(query):
    """What Prometheus 2.42 and 3 would evaluate differently."""
    code = re.sub(r'"[^"]*"', '""', query)
    known = OPERATORS | MODIFIERS | AGGREGATIONS | FUNCTIONS
    yield from (name for name in re.findall(r"\b([a-z_0-9]+)\s*\(", code) if name not in known)
    # A bound of a bucket is 1 in 2.42 and 1.0 in 3.
    yield from re.findall(r'\b(?:le|quantile)\s*=~?\s*"\d+"', query)
    # The dot matches a line break in 3; no label value of an agent contains one.
    yield from re.findall(r'(?<!__name__)[!=]~"[^"]*(?:\\n|\[\^)[^"]*"', query)
    # A name in quotation marks, and a native histogram.
    yield from re.findall(r'\{\s*"', query)
    yield from re.findall(r"\bhistogram_(?!quantile)\w+", code)
    # A range is open at its left end in 3: one of a few scrapes has a sample less.
    for window in re.findall(r"\[([^\]]*)\]", code):
        if not window.startswith("$"):
            number, unit, *rest = re.fullmatch(r"(\d+)([smhd])(:.*)?", window).groups()
            if float(number) * SECONDS[unit] < MIN_WINDOW_SECONDS or rest[0]:
                yield window


FILES = [
    *(ROOT / "deploy").glob("*/rules.y*ml"),
    *(ROOT / "grafana" / "dashboards").glob("*.json"),
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_query_depends_on_the_version(path):
    text = path.read_text()
    queries = [*expressions(json.loads(text) if path.suffix == ".json" else yaml.safe_load(text))]
    found = {query: [*differences(query)] for query in queries}
    if path.parent.name == "vmalert":
        # MetricsQL has one version; its rules need subqueries.
        found = {
            query: [each for each in wrong if ":" not in each] for query, wrong in found.items()
        }

    assert len(queries) > 10
    assert {query: wrong for query, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    "query",
    [
        "holt_winters(a[1h], 0.5, 0.5)",
        "double_exponential_smoothing(a[1h], 0.5, 0.5)",
        "mad_over_time(a[1h])",
        "sum(a) by (run) > limitk(2, a)",
        "rate(a[15s])",
        "count_over_time(a[5m:1m])",
        'a{le="1"}',
        '{"a.b"}',
        'a{text=~"first\\\\n.*"}',
        "histogram_avg(a)",
    ],
)
def test_a_difference_is_found(query):
    assert [*differences(query)] != []
