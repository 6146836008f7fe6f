"""W&B offline: the `.wandb` file of a run, or its folder, which holds the whole history.

It is there from the first row on, also of a run that crashed. A row may be of a part of a step, and
goes by the run's own counter where it has one, else by W&B's `_step`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sentinel.readers.log_config import LARGEST, Stated, stated
from sentinel.readers.log_reader import Reading
from sentinel.readers.protobuf import fields, inside, text
from sentinel.readers.row_reader import Row, telling
from sentinel.readers.rows import Rows
from sentinel.readers.wandb_file import BEGINNING, payloads

LONGEST_NUMBER = 64
"""Characters; what is longer is a table, a picture or a text."""

_HISTORY, _CONFIG, _RUN, _CONFIG_OF_RUN = 2, 5, 17, 4
"""Kinds of a record, and where in that of the run the configuration it began with lies."""

_ITEM, _KEY, _NESTED, _VALUE = 1, 1, 2, 16


def recognises(path: Path, head: bytes) -> bool:
    """Whether it begins as such a file does, or is a folder with one."""
    return _inside(path) is not None if path.is_dir() else head.startswith(BEGINNING)


def read(path: Path) -> Reading:
    """Records of the run. Raises OSError, while iterating, if it cannot be opened."""
    file = (_inside(path) if path.is_dir() else path) or path

    def found(reading: Reading) -> Iterator[Row | Stated | None]:
        config: dict[str, Any] = {}
        for payload in payloads(file, reading):
            row = None if payload is None else _row(payload, config)
            # Files, lines of output and measures of the machine are no rows.
            if payload is None or row is not None:
                yield row

    return telling(lambda _: Rows(run=file.stem.removeprefix("run-")), found)


def _inside(folder: Path) -> Path | None:
    files = list(folder.glob("*.wandb"))
    return files[0] if len(files) == 1 else None


def _row(payload: bytes, config: dict[str, Any]) -> Row | Stated | None:
    """The numbers of one row, or what `config` says with what a record adds to it.

    None of a record that is neither, nothing of one that is damaged.
    """
    try:
        for number, content in fields(payload):
            if number == _HISTORY:
                return dict(_items(content, LONGEST_NUMBER))
            if number in (_CONFIG, _RUN):
                return _config(content, config, of_run=number == _RUN)
    except (ValueError, RecursionError):
        return {}
    return None


def _config(content: int | bytes, config: dict[str, Any], *, of_run: bool) -> Stated | None:
    try:
        if of_run:
            content = next((part for n, part in inside(content) if n == _CONFIG_OF_RUN), b"")
        config |= dict(_items(content, LARGEST))
    except (ValueError, RecursionError):
        return None
    return stated(config)


def _items(told: int | bytes, longest: int) -> Iterator[tuple[str, Any]]:
    for number, item in inside(told):
        if number != _ITEM:
            continue
        names: list[str] = []
        value = ""
        for part, content in inside(item):
            if part in (_KEY, _NESTED):
                names.append(text(content))
            elif part == _VALUE and isinstance(content, bytes) and len(content) <= longest:
                value = text(content)
        if value:
            yield "/".join(filter(None, names)), json.loads(value)
