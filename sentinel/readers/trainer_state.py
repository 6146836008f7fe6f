"""Trainer state: `trainer_state.json` of transformers, as a file or in the folder of a run.

The newest checkpoint's file holds the whole history. In a folder the `checkpoint-<step>` folders
are told as saves. Rows for one step with the same keys are one row told twice.
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
from sentinel.readers.log_reader import LogReader
from sentinel.readers.rows import RowConverter
from sentinel.signals.framework_config import ConfigMetadata
from sentinel.signals.run_metadata import RunMetadata

FILE_NAME = "trainer_state.json"
MAX_NUMBER = 1e18
"""No run has this many steps; an integer may be too large to be a float."""

CONFIG_KEYS = {
    **{n: n for n in ("max_steps", "save_steps", "logging_steps", "num_train_epochs")},
    "train_batch_size": "per_device_train_batch_size",
}
"""What the state says of the configuration, and what that is called elsewhere."""

EventKey = tuple[Event, int]
UNCOUNTED_EVENTS = (Event.SAVE, Event.METADATA)
"""What may be there no more, or come to be there, of one and the same history."""

CHECKPOINT_FOLDER = re.compile(r"checkpoint-(\d+)")


def can_read(path: Path, head: bytes) -> bool:
    """Whether this is such a file, by name or content, or a folder with one."""
    if path.is_dir():
        return _newest_state_file(path) is not None
    return path.name == FILE_NAME or b'"log_history"' in head


def read(path: Path) -> LogReader:
    """Records of the run. Raises OSError or ValueError, while iterating, if unreadable."""

    def records(reading: LogReader) -> Iterator[Record | None]:
        if reading.is_live:
            yield from _follow(path, reading)
        else:
            yield from _read_once(path, reading)

    return LogReader(records)


def _read_once(path: Path, reading: LogReader) -> Iterator[Record]:
    file = _newest_state_file(path) if path.is_dir() else path
    if file is None:
        raise FileNotFoundError(f"{path} holds no {FILE_NAME}")
    state = _load_state(file)
    run = path.resolve().name if path.is_dir() else path.stem
    saved = _checkpoint_steps(path) if path.is_dir() else []
    about = RunMetadata()
    about.detect_framework(
        {key for row in state["log_history"] if isinstance(row, dict) for key in row}
    )
    start = _start_record(run, state, saved, {"framework": "transformers", **about.metadata})
    yield start
    known = _config_metadata(path, state)
    if known:
        about.update_metadata(text_metadata(known))
        yield config_record(known, start, logs_saves=bool(saved))
    saves = (_save_record(run, step) for step in saved)
    history = _history_records(RowConverter(run=run, metadata=about), state, reading)
    yield from merge(history, saves, key=lambda record: record.step)


def _follow(path: Path, reading: LogReader) -> Iterator[Record | None]:
    """What the newest state holds more than the one before; `reading.mark` counts its records.

    Checkpoints that were removed stay told. A history that became shorter is that of a run which
    was begun anew.
    """
    attempt, before, told = 0, None, Counter[EventKey]()
    while True:
        seen = _fingerprint(path)
        records = [] if seen == before else _read_all_records(path, reading)
        if not records:
            yield None
            continue
        before, places = seen, Counter(map(_event_key, records))
        if any(event not in UNCOUNTED_EVENTS for event, _ in told - places):
            attempt, told, reading.position = attempt + 1, Counter(), 0
        passed = told.copy()
        told |= places
        for record in records:
            if passed[_event_key(record)]:
                passed[_event_key(record)] -= 1
                continue
            reading.position += record.event not in UNCOUNTED_EVENTS
            yield replace(record, attempt=attempt) if attempt else record


def _read_all_records(path: Path, reading: LogReader) -> list[Record]:
    """All records of the state as it is; none where it cannot be read, or is just being written."""
    whole = LogReader(lambda own: _read_once(path, own))
    try:
        records = list(whole)
    except (OSError, ValueError):
        return []
    reading.skipped = whole.skipped
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
        state = json.loads(file.read_bytes())
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
    """Steps of the checkpoints that are there, ascending."""
    matches = (CHECKPOINT_FOLDER.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def _config_metadata(path: Path, state: Mapping[str, Any]) -> ConfigMetadata:
    """What a file of arguments, or a search for the best ones, says of the configuration."""
    said = (read_config_file(path), extract_config(state.get("trial_params")))
    return {name: fact for each in said if each for name, fact in each.metadata.items()}


def _start_record(
    run: str, state: Mapping[str, Any], checkpoint_steps: list[int], metadata: Mapping[str, str]
) -> Record:
    values = {
        name: float(state[key])
        for key, name in CONFIG_KEYS.items()
        if isinstance(state.get(key), int | float)
        and not isinstance(state[key], bool)
        and abs(state[key]) < MAX_NUMBER
    }
    if _saves_by_epoch(state, checkpoint_steps):
        # The state names save_steps, its default, even where saving goes by epochs.
        values.pop("save_steps", None)
    elif 0 < values.get("save_steps", 0.0) < 1:
        values["save_steps"] *= values.get("max_steps", 0.0)
    return Record(
        run=run,
        rank=WHOLE_RUN,
        step=0,
        time=0.0,
        event=Event.START,
        values=values,
        attributes=metadata,
    )


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
    converter: RowConverter, state: Mapping[str, Any], reading: LogReader
) -> Iterator[Record]:
    told: dict[frozenset[str], int | None] = {}
    for row in state["log_history"]:
        record = converter.to_record(row) if isinstance(row, dict) else None
        if record is None:
            reading.skipped += 1
            continue
        kind = frozenset(row)
        if told.get(kind) != record.step:
            yield record
        told[kind] = record.step
