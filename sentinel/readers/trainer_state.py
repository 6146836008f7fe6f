"""Trainer state: `trainer_state.json` of transformers, as a file or in the directory of a run.

The newest checkpoint's file holds the whole history. `checkpoint-<step>` folders in the directory,
or beside the file, are read as saves. Rows of one step with the same keys are duplicates.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import merge
from pathlib import Path
from typing import Any

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.readers.json_members import iterate_members
from sentinel.readers.log_config import (
    LoggedConfig,
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
HISTORY_KEY = "log_history"
MAX_ROW_KEYS = 100_000
"""Keys of rows from which the framework is recognised."""
MAX_KEY_SETS = 10_000
"""Sets of keys whose last step is remembered, to find duplicate rows."""
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


def log_files(folder: Path) -> list[Path]:
    """The newest trainer state in a directory, and its checkpoints."""
    checkpoints = [folder / f"checkpoint-{step}" for step in _checkpoint_steps(folder)]
    file = _newest_state_file(folder)
    return checkpoints if file is None else [file, *checkpoints]


def _read_once(path: Path, reader: LogReader) -> Iterator[Record]:
    file = _newest_state_file(path) if path.is_dir() else path
    if file is None:
        raise FileNotFoundError(f"{path} holds no {FILE_NAME}")
    overview = _read_overview(file)
    run = path.resolve().name if path.is_dir() else log_stem(path)
    checkpoints = _checkpoint_steps(path) if path.is_dir() else _sibling_steps(path, overview.state)
    metadata = RunMetadata()
    metadata.configure_keys(reader.keys)
    metadata.detect_framework(overview.row_keys)
    start = start_record(
        Record(run=run, rank=WHOLE_RUN, step=0, time=0.0),
        _framework(overview) | metadata.metadata,
        _config_values(overview.state, checkpoints),
    )
    yield start
    config = _config(path, overview.state)
    reader.settings = dict(config.settings)
    if config.metadata:
        metadata.update_metadata(text_metadata(config.metadata))
        yield config_record(config.metadata, start, logs_saves=bool(checkpoints))
    saves = (_save_record(run, step) for step in checkpoints)
    converter = RowConverter(run=run, metadata=metadata)
    history = _history_records(converter, _history_rows(file, overview), reader)
    yield from merge(history, saves, key=lambda record: record.step)


def _follow(path: Path, reader: LogReader) -> Iterator[Record | None]:
    """The records that each new state adds; `reader.position` counts them.

    Checkpoints that were removed remain counted. A history that became shorter, or of which a row
    changed, belongs to a run that was started over.
    """
    attempt, last_fingerprint, yielded = 0, None, _YieldedRecords()
    while True:
        fingerprint = _fingerprint(path)
        if fingerprint is None or fingerprint == last_fingerprint:
            yield None
            continue
        try:
            state_reader = LogReader(lambda own: _read_once(path, own), keys=reader.keys)
            for record in yielded.new_records(state_reader):
                reader.position += record.event not in UNCOUNTED_EVENTS
                yield replace(record, attempt=attempt) if attempt else record
        except _StartedOverError:
            attempt, yielded, reader.position = attempt + 1, _YieldedRecords(), 0
            continue
        except (OSError, ValueError):
            # It is being written; what is missing of it is read later.
            yield None
            continue
        reader.skipped, last_fingerprint = state_reader.skipped, fingerprint


class _StartedOverError(Exception):
    """The history does not begin with the rows that were yielded."""


@dataclass
class _YieldedRecords:
    """What was yielded of a state that is followed, in eight bytes per row of the history.

    `rows` are hashes of event and step, `others` counts the events that may disappear.
    """

    rows: array[int] = field(default_factory=lambda: array("q"))
    others: Counter[EventKey] = field(default_factory=Counter)

    def new_records(self, records: Iterable[Record]) -> Iterator[Record]:
        """Those of the records that were not yielded before; they count as yielded then.

        Raises _StartedOverError before the first of them.
        """
        known_rows, known_others = len(self.rows), self.others.copy()
        row_count, waiting = 0, list[Record]()
        for record in records:
            key = _event_key(record)
            if record.event in UNCOUNTED_EVENTS:
                if known_others[key]:
                    known_others[key] -= 1
                else:
                    waiting.append(record)
            elif row_count < known_rows:
                if self.rows[row_count] != hash(key):
                    raise _StartedOverError
                row_count += 1
            else:
                yield from self._add(waiting)
                self.rows.append(hash(key))
                yield record
        if row_count < known_rows:
            raise _StartedOverError
        yield from self._add(waiting)

    def _add(self, waiting: list[Record]) -> Iterator[Record]:
        while waiting:
            self.others[_event_key(waiting[0])] += 1
            yield waiting.pop(0)


def _event_key(record: Record) -> EventKey:
    return record.event, record.step


def _framework(overview: _Overview) -> dict[str, str]:
    """The framework of a state; a bare list of rows may be of any."""
    return {} if overview.state.keys() == {HISTORY_KEY} else {"framework": "transformers"}


def _fingerprint(path: Path) -> tuple[str, int, int] | None:
    file = _newest_state_file(path) if path.is_dir() else path
    try:
        state = file.stat() if file else None
    except OSError:
        return None
    return (str(file), state.st_mtime_ns, state.st_size) if state else None


@dataclass
class _Overview:
    """A state without its rows: the other members, the keys in the rows, and where the rows are.

    `list_number` counts the members `log_history`: as in any JSON object, the last one is valid.
    """

    state: dict[str, Any] = field(default_factory=dict)
    row_keys: set[str] = field(default_factory=set)
    list_number: int = 0
    fingerprint: tuple[int, ...] = ()


def _read_overview(file: Path) -> _Overview:
    """Read the file to its end. Raises OSError, and ValueError if it is no complete state.

    The rows are read again later: all of them may be more than fits into memory.
    """
    overview = _Overview()
    with open_log_file(file) as opened:
        overview.fingerprint = _open_fingerprint(file)
        for member in iterate_members(opened, HISTORY_KEY):
            if member.key != HISTORY_KEY:
                overview.state[member.key] = member.value
            elif not member.is_element:
                overview.list_number += 1
                overview.row_keys.clear()
                overview.state[HISTORY_KEY] = member.value
            elif isinstance(member.value, dict) and len(overview.row_keys) < MAX_ROW_KEYS:
                overview.row_keys |= member.value.keys()
    if not isinstance(overview.state.get(HISTORY_KEY), list):
        raise ValueError(f"{file} has no list {HISTORY_KEY}")  # noqa: TRY004 - the file is wrong
    return overview


def _history_rows(file: Path, overview: _Overview) -> Iterator[Any]:
    """The elements of the list of rows. Raises ValueError if the file is another one by now."""
    list_number = 0
    with open_log_file(file) as opened:
        if _open_fingerprint(file) != overview.fingerprint:
            raise ValueError(f"{file} changed while it was read; try again")
        for member in iterate_members(opened, HISTORY_KEY):
            if member.key != HISTORY_KEY:
                continue
            list_number += not member.is_element
            if member.is_element and list_number == overview.list_number:
                yield member.value


def _open_fingerprint(file: Path) -> tuple[int, ...]:
    status = file.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


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


def _sibling_steps(file: Path, state: Mapping[str, Any]) -> list[int]:
    """Steps of the checkpoints beside the one that holds the file, or beside the file itself.

    Later ones than the state are left out: it does not hold their rows.
    """
    folder = file.resolve().parent
    if CHECKPOINT_FOLDER.fullmatch(folder.name):
        folder = folder.parent
    last_step = state.get("global_step")
    last = last_step if isinstance(last_step, int) else MAX_NUMBER
    try:
        return [step for step in _checkpoint_steps(folder) if step <= last]
    except OSError:
        return []


def _config(path: Path, state: Mapping[str, Any]) -> LoggedConfig:
    """Configuration from a file of arguments and from a hyper-parameter search."""
    metadata, settings = ConfigMetadata(), dict[str, Any]()
    for config in (read_config_file(path), extract_config(state.get("trial_params"))):
        if config is not None:
            metadata |= config.metadata
            settings |= config.settings
    return LoggedConfig(metadata, settings)


def _config_values(state: Mapping[str, Any], checkpoint_steps: list[int]) -> dict[str, float]:
    values = {
        name: float(state[key])
        for key, name in CONFIG_KEYS.items()
        if isinstance(state.get(key), int | float)
        and not isinstance(state[key], bool)
        and abs(state[key]) < MAX_NUMBER
    }
    if not checkpoint_steps or _saves_by_epoch(state, checkpoint_steps):
        # Without the folders of checkpoints, none can be missing: the file may have been copied.
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
    converter: RowConverter, rows: Iterable[Any], reader: LogReader
) -> Iterator[Record]:
    last_steps: dict[frozenset[str], int | None] = {}
    for row in rows:
        record = converter.to_record(row) if isinstance(row, dict) else None
        if record is None:
            reader.skipped += 1
            continue
        keys = frozenset(row)
        if last_steps.get(keys) != record.step:
            yield record
        if len(last_steps) >= MAX_KEY_SETS:
            last_steps.clear()
        last_steps[keys] = record.step
