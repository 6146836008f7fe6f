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
from sentinel.readers.log_config import beside, stated, stating, texts
from sentinel.readers.log_reader import Reading
from sentinel.readers.rows import Rows
from sentinel.signals.framework_config import Facts
from sentinel.signals.run_metadata import About

NAME = "trainer_state.json"
BEYOND = 1e18
"""No run has this many steps; an integer may be too large to be a float."""

SETTINGS = {
    **{n: n for n in ("max_steps", "save_steps", "logging_steps", "num_train_epochs")},
    "train_batch_size": "per_device_train_batch_size",
}
"""What the state says of the configuration, and what that is called elsewhere."""

Place = tuple[Event, int]
UNCOUNTED = (Event.SAVE, Event.FACTS)
"""What may be there no more, or come to be there, of one and the same history."""

CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def recognises(path: Path, head: bytes) -> bool:
    """Whether this is such a file, by name or content, or a folder with one."""
    if path.is_dir():
        return _newest(path) is not None
    return path.name == NAME or b'"log_history"' in head


def read(path: Path) -> Reading:
    """Records of the run. Raises OSError or ValueError, while iterating, if unreadable."""

    def records(reading: Reading) -> Iterator[Record | None]:
        if reading.live:
            yield from _grown(path, reading)
        else:
            yield from _whole(path, reading)

    return Reading(records)


def _whole(path: Path, reading: Reading) -> Iterator[Record]:
    file = _newest(path) if path.is_dir() else path
    if file is None:
        raise FileNotFoundError(f"{path} holds no {NAME}")
    state = _state(file)
    run = path.resolve().name if path.is_dir() else path.stem
    saved = _saved(path) if path.is_dir() else []
    about = About()
    about.hear({key for row in state["log_history"] if isinstance(row, dict) for key in row})
    start = _start(run, state, saved, {"framework": "transformers", **about.facts})
    yield start
    known = _known(path, state)
    if known:
        about.learn(texts(known))
        yield stating(known, start, saves=bool(saved))
    saves = (_save(run, step) for step in saved)
    history = _history(Rows(run=run, about=about), state, reading)
    yield from merge(history, saves, key=lambda record: record.step)


def _grown(path: Path, reading: Reading) -> Iterator[Record | None]:
    """What the newest state holds more than the one before; `reading.mark` counts its records.

    Checkpoints that were removed stay told. A history that became shorter is that of a run which
    was begun anew.
    """
    attempt, before, told = 0, None, Counter[Place]()
    while True:
        seen = _stamp(path)
        records = [] if seen == before else _records(path, reading)
        if not records:
            yield None
            continue
        before, places = seen, Counter(map(_place, records))
        if any(event not in UNCOUNTED for event, _ in told - places):
            attempt, told, reading.mark = attempt + 1, Counter(), 0
        passed = told.copy()
        told |= places
        for record in records:
            if passed[_place(record)]:
                passed[_place(record)] -= 1
                continue
            reading.mark += record.event not in UNCOUNTED
            yield replace(record, attempt=attempt) if attempt else record


def _records(path: Path, reading: Reading) -> list[Record]:
    """All records of the state as it is; none where it cannot be read, or is just being written."""
    whole = Reading(lambda own: _whole(path, own))
    try:
        records = list(whole)
    except (OSError, ValueError):
        return []
    reading.skipped = whole.skipped
    return records


def _place(record: Record) -> Place:
    return record.event, record.step


def _stamp(path: Path) -> tuple[str, int, int] | None:
    file = _newest(path) if path.is_dir() else path
    try:
        state = file.stat() if file else None
    except OSError:
        return None
    return (str(file), state.st_mtime_ns, state.st_size) if state else None


def _state(file: Path) -> dict[str, Any]:
    try:
        state = json.loads(file.read_bytes())
    except RecursionError:
        raise ValueError(f"{file} is nested too deeply") from None
    if isinstance(state, dict) and isinstance(state.get("log_history"), list):
        return state
    raise ValueError(f"{file} has no list log_history")


def _newest(folder: Path) -> Path | None:
    own = folder / NAME
    files = [folder / f"checkpoint-{step}" / NAME for step in _saved(folder)] + [own]
    return next((file for file in reversed(files) if file.is_file()), None)


def _saved(folder: Path) -> list[int]:
    """Steps of the checkpoints that are there, ascending."""
    matches = (CHECKPOINT.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def _known(path: Path, state: Mapping[str, Any]) -> Facts:
    """What a file of arguments, or a search for the best ones, says of the configuration."""
    said = (beside(path), stated(state.get("trial_params")))
    return {name: fact for each in said if each for name, fact in each.facts.items()}


def _start(
    run: str, state: Mapping[str, Any], saved: list[int], about: Mapping[str, str]
) -> Record:
    values = {
        name: float(state[key])
        for key, name in SETTINGS.items()
        if isinstance(state.get(key), int | float)
        and not isinstance(state[key], bool)
        and abs(state[key]) < BEYOND
    }
    if _once_an_epoch(state, saved):
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
        facts=about,
    )


def _once_an_epoch(state: Mapping[str, Any], saved: list[int]) -> bool:
    epochs, steps = state.get("num_train_epochs"), state.get("max_steps")
    if not saved or not isinstance(epochs, int | float) or not isinstance(steps, int | float):
        return False
    if not 0 < epochs < BEYOND or not 0 < steps < BEYOND:
        return False
    epoch = steps / epochs
    return all(step >= steps or abs(step - round(step / epoch) * epoch) < 1.5 for step in saved)


def _save(run: str, step: int) -> Record:
    return Record(run=run, rank=WHOLE_RUN, step=step, time=float(step), event=Event.SAVE)


def _history(rows: Rows, state: Mapping[str, Any], reading: Reading) -> Iterator[Record]:
    told: dict[frozenset[str], int | None] = {}
    for row in state["log_history"]:
        record = rows.record(row) if isinstance(row, dict) else None
        if record is None:
            reading.skipped += 1
            continue
        kind = frozenset(row)
        if told.get(kind) != record.step:
            yield record
        told[kind] = record.step
