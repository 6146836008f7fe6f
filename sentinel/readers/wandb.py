"""W&B offline: the `.wandb` file of a run, or its directory; the file holds the whole history.

The file is written continuously, so a run that crashed has one too. A row may be part of a step;
its step is the run's own counter if there is one, else W&B's `_step`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sentinel.readers.log_config import MAX_CONFIG_BYTES, LoggedConfig, extract_config
from sentinel.readers.log_reader import LogReader, Row, row_reader
from sentinel.readers.protobuf import decode_text, fields, subfields
from sentinel.readers.rows import RowConverter
from sentinel.readers.wandb_file import FILE_MAGIC, read_payloads
from sentinel.readers.wandb_media import decode_media, typed_objects

FORMAT_NAME = "W&B offline"

MAX_NUMBER_CHARS = 64
"""A longer value is a table, an image or a text."""

MAX_MEDIA_CHARS = 2**20
"""A longer value is neither an image nor a histogram."""

_TYPE_KEY = b"_type"
"""Part of every row with an image or a histogram."""

_HISTORY, _CONFIG, _RUN, _RUN_CONFIG = 2, 5, 17, 4
"""Field numbers of the record types, and of the initial configuration in a run record."""

_ITEM, _KEY, _NESTED, _VALUE = 1, 1, 2, 16


def can_read(path: Path, head: bytes) -> bool:
    """Whether it starts as a `.wandb` file, or is a directory with one."""
    return _find_file(path) is not None if path.is_dir() else head.startswith(FILE_MAGIC)


def read(path: Path) -> LogReader:
    """Records of the run. Raises OSError, while iterating, if it cannot be opened."""
    file = (_find_file(path) if path.is_dir() else path) or path

    def rows(reader: LogReader) -> Iterator[Row | LoggedConfig | None]:
        config: dict[str, Any] = {}
        for payload in read_payloads(file, reader):
            row = None if payload is None else _decode_record(payload, config)
            if payload is not None and _TYPE_KEY in payload:
                for media in decode_media(_decode_media_row(payload), file):
                    reader.on_media(media)
            # Files, output lines and system metrics are not rows.
            if payload is None or row is not None:
                yield row

    return row_reader(lambda _: RowConverter(run=file.stem.removeprefix("run-")), rows)


def log_files(folder: Path) -> list[Path]:
    """The file of the run in a directory."""
    return list(folder.glob("*.wandb"))


def decode_row(payload: bytes) -> dict[str, Any]:
    """The numbers of the row in a record; empty for any other record."""
    row = _decode_record(payload, {})
    return dict(row) if isinstance(row, Mapping) else {}


def _find_file(folder: Path) -> Path | None:
    files = list(folder.glob("*.wandb"))
    return files[0] if len(files) == 1 else None


def _decode_record(payload: bytes, config: dict[str, Any]) -> Row | LoggedConfig | None:
    """The numbers of one row, or the configuration after a record that updates `config`.

    None for any other record, an empty row for a damaged one.
    """
    try:
        for number, content in fields(payload):
            if number == _HISTORY:
                return _without_media(dict(_decode_items(content, MAX_NUMBER_CHARS)))
            if number in (_CONFIG, _RUN):
                return _update_config(content, config, is_run_record=number == _RUN)
    except (ValueError, RecursionError):
        return {}
    return None


def _without_media(row: dict[str, Any]) -> dict[str, Any]:
    """The row without the members of images and other objects: an image's width is no metric."""
    objects = typed_objects(row)
    if not objects:
        return row
    return {key: value for key, value in row.items() if key.rpartition("/")[0] not in objects}


def _decode_media_row(payload: bytes) -> dict[str, Any]:
    """The row with all values; empty for any other or a damaged record."""
    try:
        for number, content in fields(payload):
            if number == _HISTORY:
                return dict(_decode_items(content, MAX_MEDIA_CHARS))
    except (ValueError, RecursionError):
        pass
    return {}


def _update_config(
    content: int | bytes, config: dict[str, Any], *, is_run_record: bool
) -> LoggedConfig | None:
    try:
        if is_run_record:
            content = next((part for n, part in subfields(content) if n == _RUN_CONFIG), b"")
        config |= dict(_decode_items(content, MAX_CONFIG_BYTES))
    except (ValueError, RecursionError):
        return None
    return extract_config(config)


def _decode_items(message: int | bytes, max_chars: int) -> Iterator[tuple[str, Any]]:
    for number, item in subfields(message):
        if number != _ITEM:
            continue
        names: list[str] = []
        value = ""
        for part, content in subfields(item):
            if part in (_KEY, _NESTED):
                names.append(decode_text(content))
            elif part == _VALUE and isinstance(content, bytes) and len(content) <= max_chars:
                value = decode_text(content)
        if value:
            yield "/".join(filter(None, names)), json.loads(value)
