"""Trainer state: `trainer_state.json` of transformers, as a file or in the directory of a run.

The newest checkpoint's file holds the whole history. In a directory, `checkpoint-<step>` folders
are read as saves. Rows of one step with the same keys are duplicates.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from heapq import merge
from pathlib import Path
from typing import Any

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.readers.log_config import (
    config_record,
    extract_config,
    read_config_file,
    text_metadata,
)
from sentinel.readers.log_file import log_stem, open_log_file, uncompressed_name
from sentinel.readers.log_reader import LogReader
from sentinel.readers.rows import RowConverter, start_record
from sentinel.signals.framework_config import ConfigMetadata
from sentinel.signals.run_metadata import RunMetadata

FORMAT_NAME = "Trainer state"

FILE_NAME = "trainer_state.json"
MAX_NUMBER = 1e18
"""Larger numbers are ignored; JSON integers may be too large for a float."""

CONFIG_KEYS = {
    **{n: n for n in ("max_steps", "save_steps", "logging_steps", "num_train_epochs")},
    "train_batch_size": "per_device_train_batch_size",
}
"""Keys of the state with configuration, and their usual names."""

EventKey = tuple[Event, int]
UNCOUNTED_EVENTS = (Event.SAVE, Event.METADATA)
"""Events that may appear or disappear without a change of the history."""

CHECKPOINT_FOLDER = re.compile(r"checkpoint-(\d+)")


def can_read(path: Path, head: bytes) -> bool:
    """Whether this is a trainer state by name or content, or a directory with one."""
    if path.is_dir():
        return _newest_state_file(path) is not None
    return uncompressed_name(path).name == FILE_NAME or b'"log_history"' in head


def read(path: Path) -> LogReader:
    """Records of the run. Raises OSError or ValueError, while iterating, if unreadable."""

    def records(reader: LogReader) -> Iterator[Record | None]:
        if reader.is_live:
            yield from _follow(path, reader)
        else:
            yield from _read_once(path, reader)

    return LogReader(records)


def _read_once(path: Path, reader: LogReader) -> Iterator[Record]:
    file = _newest_state_file(path) if path.is_dir() else path
    if file is None:
        raise FileNotFoundError(f"{path} holds no {FILE_NAME}")
    state = _load_state(file)
    run = path.resolve().name if path.is_dir() else log_stem(path)
    checkpoints = _checkpoint_steps(path) if path.is_dir() else []
    metadata = RunMetadata()
    metadata.configure_keys(reader.keys)
    metadata.detect_framework(
        {key for row in state["log_history"] if isinstance(row, dict) for key in row}
    )
    start = start_record(
        Record(run=run, rank=WHOLE_RUN, step=0, time=0.0),
        {"framework": "transformers", **metadata.metadata},
        _config_values(state, checkpoints),
    )
    yield start
    config = _config_metadata(path, state)
    if config:
        metadata.update_metadata(text_metadata(config))
        yield config_record(config, start, logs_saves=bool(checkpoints))
    saves = (_save_record(run, step) for step in checkpoints)
    history = _history_records(RowConverter(run=run, metadata=metadata), state, reader)
    yield from merge(history, saves, key=lambda record: record.step)


def _follow(path: Path, reader: LogReader) -> Iterator[Record | None]:
    """The records that each new state adds; `reader.position` counts them.

    Checkpoints that were removed remain counted. A history that became shorter belongs to a run
    that was started over.
    """
    attempt, last_fingerprint, yielded = 0, None, Counter[EventKey]()
    while True:
        fingerprint = _fingerprint(path)
        records = [] if fingerprint == last_fingerprint else _read_all_records(path, reader)
        if not records:
            yield None
            continue
        last_fingerprint, current = fingerprint, Counter(map(_event_key, records))
        if any(event not in UNCOUNTED_EVENTS for event, _ in yielded - current):
            attempt, yielded, reader.position = attempt + 1, Counter(), 0
        known = yielded.copy()
        yielded |= current
        for record in records:
            if known[_event_key(record)]:
                known[_event_key(record)] -= 1
                continue
            reader.position += record.event not in UNCOUNTED_EVENTS
            yield replace(record, attempt=attempt) if attempt else record


def _read_all_records(path: Path, reader: LogReader) -> list[Record]:
    """All records of the current state; none if it is unreadable or still being written."""
    state_reader = LogReader(lambda own: _read_once(path, own), keys=reader.keys)
    try:
        records = list(state_reader)
    except (OSError, ValueError):
        return []
    reader.skipped = state_reader.skipped
    return records


def _event_key(record: Record) -> EventKey:
    return record.event, record.step


def _fingerprint(path: Path) -> tuple[str, int, int] | None:
    file = _newest_state_file(path) if path.is_dir() else path
    try:
        state = file.stat() if file else None
    except OSError:
        return None
    return (str(file), state.st_mtime_ns, state.st_size) if state else None


def _load_state(file: Path) -> dict[str, Any]:
    try:
        with open_log_file(file) as opened:
            state = json.loads(opened.read())
    except RecursionError:
        raise ValueError(f"{file} is nested too deeply") from None
    if isinstance(state, dict) and isinstance(state.get("log_history"), list):
        return state
    raise ValueError(f"{file} has no list log_history")


def _newest_state_file(folder: Path) -> Path | None:
    own = folder / FILE_NAME
    files = [folder / f"checkpoint-{step}" / FILE_NAME for step in _checkpoint_steps(folder)] + [
        own
    ]
    return next((file for file in reversed(files) if file.is_file()), None)


def _checkpoint_steps(folder: Path) -> list[int]:
    """Steps of the existing checkpoints, ascending."""
    matches = (CHECKPOINT_FOLDER.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def _config_metadata(path: Path, state: Mapping[str, Any]) -> ConfigMetadata:
    """Configuration from a file of arguments and from a hyper-parameter search."""
    configs = (read_config_file(path), extract_config(state.get("trial_params")))
    return {name: value for each in configs if each for name, value in each.metadata.items()}


def _config_values(state: Mapping[str, Any], checkpoint_steps: list[int]) -> dict[str, float]:
    values = {
        name: float(state[key])
        for key, name in CONFIG_KEYS.items()
        if isinstance(state.get(key), int | float)
        and not isinstance(state[key], bool)
        and abs(state[key]) < MAX_NUMBER
    }
    if _saves_by_epoch(state, checkpoint_steps):
        # The state holds the default save_steps even if checkpoints are saved by epochs.
        values.pop("save_steps", None)
    elif 0 < values.get("save_steps", 0.0) < 1:
        values["save_steps"] *= values.get("max_steps", 0.0)
    return values


def _saves_by_epoch(state: Mapping[str, Any], checkpoint_steps: list[int]) -> bool:
    epochs, steps = state.get("num_train_epochs"), state.get("max_steps")
    if (
        not checkpoint_steps
        or not isinstance(epochs, int | float)
        or not isinstance(steps, int | float)
    ):
        return False
    if not 0 < epochs < MAX_NUMBER or not 0 < steps < MAX_NUMBER:
        return False
    epoch = steps / epochs
    return all(
        step >= steps or abs(step - round(step / epoch) * epoch) < 1.5 for step in checkpoint_steps
    )


def _save_record(run: str, step: int) -> Record:
    return Record(run=run, rank=WHOLE_RUN, step=step, time=float(step), event=Event.SAVE)


def _history_records(
    converter: RowConverter, state: Mapping[str, Any], reader: LogReader
) -> Iterator[Record]:
    last_steps: dict[frozenset[str], int | None] = {}
    for row in state["log_history"]:
        record = converter.to_record(row) if isinstance(row, dict) else None
        if record is None:
            reader.skipped += 1
            continue
        keys = frozenset(row)
        if last_steps.get(keys) != record.step:
            yield record
        last_steps[keys] = record.step
