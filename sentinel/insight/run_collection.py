"""Runs with their settings and an outcome: from tables, logs and the runs of the home directory."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from sentinel.insight.run_settings import to_value
from sentinel.readers.log_file import open_log_file

Statistic = Literal["last", "best", "mean"]
CollectedRun = dict[str, Any]
"""A run with `name`, `settings`, `outcome` (None if it has none) and `failed`."""

TABLE_SUFFIXES = frozenset({".json", ".jsonl", ".ndjson", ".csv", ".tsv"})
DEFAULT_OUTCOMES = ("eval_reward", "reward", "eval_loss", "loss")
"""Outcomes that are explained unless one is named: the first that most runs have."""

_NAME_COLUMNS = ("name", "run", "id", "run_name", "run_id", "trial_id")
_SETTINGS_COLUMNS = ("settings", "config", "params", "parameters", "hparams")
_OUTCOME_COLUMN = "outcome"
_MAX_TABLE_BYTES = 2**28


def read_table(path: Path, outcome: str) -> list[CollectedRun]:
    """The runs of a table, one per row or JSON object.

    A row has its settings in an object such as `settings` or `config`, or each in a column of its
    own; `outcome` is the column of the outcome, by default "outcome". Raises OSError, and
    ValueError if it is no such table.
    """
    column = outcome or _OUTCOME_COLUMN
    rows = [*_rows(path)]
    if not any(column in row for row in rows):
        names = ", ".join(sorted({name for row in rows for name in row})[:20])
        raise ValueError(f"no row has a column {column!r}; its columns: {names}")
    return [_table_run(row, column, place) for place, row in enumerate(rows, 1)]


def _table_run(row: Mapping[str, Any], column: str, place: int) -> CollectedRun:
    name_column = next((each for each in _NAME_COLUMNS if each in row), None)
    nested = next((each for each in _SETTINGS_COLUMNS if isinstance(row.get(each), Mapping)), None)
    if nested is None:
        settings = {name: row[name] for name in row if name not in {column, name_column}}
    else:
        settings = dict(row[nested])
    value = row.get(column)
    number = to_value(value)
    has_outcome = value not in {None, ""} if isinstance(value, str | None) else True
    return {
        "name": str(row[name_column]) if name_column else f"row {place}",
        "settings": settings,
        "outcome": float(number) if isinstance(number, float | bool) else None,
        # NaN is an outcome: the run diverged.
        "failed": bool(row.get("failed")) or (has_outcome and number is None),
    }


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with open_log_file(path) as file:
        data = file.read(_MAX_TABLE_BYTES + 1)
    if len(data) > _MAX_TABLE_BYTES:
        raise ValueError(f"it is larger than {_MAX_TABLE_BYTES >> 20} MiB, the limit for a table")
    text = data.decode("utf-8-sig", "replace")
    if text.lstrip().startswith(("[", "{")):
        yield from _json_rows(text)
        return
    lines = text.splitlines()
    delimiter = "\t" if lines and "\t" in lines[0] else ","
    for row in csv.DictReader(lines, delimiter=delimiter):
        yield {name: value for name, value in row.items() if name is not None and value != ""}


def _json_rows(text: str) -> Iterator[dict[str, Any]]:
    """The objects of a list, of an object with the list `runs`, or of one line each."""
    try:
        found = json.loads(text)
    except ValueError:
        found = [json.loads(line) for line in text.splitlines() if line.strip()]
    if isinstance(found, Mapping):
        found = found.get("runs", [found])
    rows = [row for row in found if isinstance(row, Mapping)] if isinstance(found, Sequence) else []
    if not rows:
        raise ValueError("it holds no object of a run")
    yield from map(dict, rows)
