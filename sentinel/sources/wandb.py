"""W&B offline: the `.wandb` file of a run, or its folder, which holds the whole history.

It is there from the first row on, also of a run that crashed. A row may be of a part of a step, and
goes by the run's own counter where it has one, else by W&B's `_step`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sentinel.sources.protobuf import fields, inside, text
from sentinel.sources.reading import Reading
from sentinel.sources.rows import Rows
from sentinel.sources.telling import Row, telling
from sentinel.sources.wandb_file import BEGINNING, payloads

LONGEST_NUMBER = 64
"""Characters; what is longer is a table, a picture or a text."""

_HISTORY, _ITEM, _KEY, _NESTED, _VALUE = 2, 1, 1, 2, 16


def recognises(path: Path, head: bytes) -> bool:
    """Whether it begins as such a file does, or is a folder with one."""
    return _inside(path) is not None if path.is_dir() else head.startswith(BEGINNING)


def read(path: Path) -> Reading:
    """Records of the run. Raises OSError, while iterating, if it cannot be opened."""
    file = (_inside(path) if path.is_dir() else path) or path

    def found(reading: Reading) -> Iterator[Row | None]:
        for payload in payloads(file, reading):
            row = None if payload is None else _row(payload)
            # Settings, files and lines of output are no rows.
            if payload is None or row is not None:
                yield row

    return telling(lambda _: Rows(run=file.stem.removeprefix("run-")), found)


def _inside(folder: Path) -> Path | None:
    files = list(folder.glob("*.wandb"))
    return files[0] if len(files) == 1 else None


def _row(payload: bytes) -> Row | None:
    """The numbers of one row; None of a record that is none, nothing of one that is damaged."""
    try:
        rows = [content for number, content in fields(payload) if number == _HISTORY]
        return dict(_items(rows[0])) if rows else None
    except ValueError:
        return {}


def _items(history: int | bytes) -> Iterator[tuple[str, Any]]:
    for number, item in inside(history):
        if number != _ITEM:
            continue
        names: list[str] = []
        value = ""
        for part, content in inside(item):
            if part in (_KEY, _NESTED):
                names.append(text(content))
            elif part == _VALUE and isinstance(content, bytes) and len(content) <= LONGEST_NUMBER:
                value = text(content)
        if value:
            yield "/".join(filter(None, names)), json.loads(value)
