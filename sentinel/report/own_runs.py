"""One's own runs that resemble another one: its framework, algorithm, and model or script."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from sentinel.report.comparison import ComparedRun
from sentinel.store.database import NewerSchemaError
from sentinel.store.run_reader import RunReader
from sentinel.transport.paths import DATABASE_NAME

MAX_RUNS = 30
MAX_SECONDS = 5.0
"""After so long, no further run is read."""
READ_ERRORS = (OSError, sqlite3.Error, NewerSchemaError)
"""Errors of a stored run that cannot be read."""
_MAX_EXAMINED = 200


def own_runs(
    home: Path, metadata: Mapping[str, Any], max_seconds: float = MAX_SECONDS
) -> Iterator[ComparedRun]:
    """The runs below `home` that resemble a run with these metadata, newest first.

    Runs that cannot be read are left out.
    """
    deadline, found = time.monotonic() + max_seconds, 0
    for path in _databases(home)[:_MAX_EXAMINED]:
        if found >= MAX_RUNS or time.monotonic() > deadline:
            return
        reader = RunReader(path)
        with suppress(*READ_ERRORS):
            if _is_alike(reader.metadata(), metadata):
                found += 1
                yield ComparedRun(path.parent.name, reader, {})


def _databases(home: Path) -> list[Path]:
    found: list[tuple[float, Path]] = []
    with suppress(OSError):
        for directory in (home / "runs").iterdir():
            path = directory / DATABASE_NAME
            with suppress(OSError):
                found.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)]


def _is_alike(metadata: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if any(metadata.get(name) != other.get(name) for name in ("framework", "algorithm")):
        return False
    models = metadata.get("model"), other.get("model")
    scripts = [PurePath(str(each.get("script", ""))).name for each in (metadata, other)]
    return (None not in models and models[0] == models[1]) or (
        "" not in scripts and scripts[0] == scripts[1]
    )
