"""Log files for tests: the same rows in each format that a reader supports."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from support.event_files import event, event_file, field
from support.policy_runs import policy_run
from support.synthetic_runs import rl_run, sft_run
from support.wandb_files import framed

from sentinel.model.record import Event, Record

Row = dict[str, Any]
START_TIME = 1.7e9
NAMES = {"completion_length": "completions/mean_length", "kl_ref": "kl"}
"""Keys of signals as trainers log them."""


def healthy_rows(seed: int, length: int = 400, every: float = 3.0) -> list[Row]:
    """Rows of a healthy RL run; a step takes `every` seconds."""
    made = {**sft_run(seed).series, **rl_run(seed).series, **policy_run(seed).series}
    series = {NAMES.get(n, n): s for n, s in made.items() if len(s) >= length}
    return [
        {"step": n + 1, "time": START_TIME + every * n}
        | {name: float(values[n]) for name, values in series.items()}
        for n in range(length)
    ]


def _lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def jsonl(folder: Path, rows: Sequence[Row]) -> Path:
    return _lines(folder / "log.jsonl", rows)


def verl(folder: Path, rows: Sequence[Row]) -> Path:
    nested = [{"step": row.get("step", 0), "data": row} for row in rows]
    return _lines(folder / "verl.jsonl", nested)


def trainer_state(folder: Path, rows: Sequence[Row]) -> Path:
    path = folder / "trainer_state.json"
    path.write_text(json.dumps({"log_history": list(rows), "max_steps": 10**6}))
    return path


def table(folder: Path, rows: Sequence[Row]) -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return folder / "metrics.csv"


def deepspeed(folder: Path, rows: Sequence[Row]) -> Path:
    job = folder / "job"
    job.mkdir()
    for name in {name for row in rows for name in row if name not in ("step", "time")}:
        lines = [f"{row['step']},{row[name]}" for row in rows if name in row and "step" in row]
        file = job / f"Train_Samples_{name.replace('/', '_')}.csv"
        file.write_text("\n".join([f"step,{name}", *lines]) + "\n")
    return job


def tensorboard(folder: Path, rows: Sequence[Row]) -> Path:
    payloads = [
        event(int(row["step"]), name, float(value), float(row["time"]))
        for row in rows
        for name, value in row.items()
        if name not in ("step", "time") and type(value) in (int, float)
    ]
    return event_file(folder / "run", *payloads)


def wandb(folder: Path, rows: Sequence[Row]) -> Path:
    path = folder / "run-x.wandb"
    path.write_bytes(framed(*(field(2, b"".join(map(_item, _timed(row)))) for row in rows)))
    return path


def _timed(row: Row) -> list[tuple[str, Any]]:
    return [*row.items(), ("_timestamp", row.get("time", 0))]


def _item(item: tuple[str, Any]) -> bytes:
    name, value = item
    return field(1, field(1, name.encode()) + field(16, json.dumps(value).encode()))


def trackio(folder: Path, rows: Sequence[Row]) -> Path:
    path = folder / "project.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "create table metrics(id integer primary key, run_name, timestamp, step, metrics)"
        )
        connection.executemany("insert into metrics values(null, 'run', ?, ?, ?)", map(_kept, rows))
    return path


def _kept(row: Row) -> tuple[str, int, str]:
    at = datetime.fromtimestamp(float(row["time"]), tz=UTC)
    return at.isoformat(), int(row["step"]), json.dumps(row)


def json_array(folder: Path, rows: Sequence[Row]) -> Path:
    path = folder / "history.json"
    path.write_text(json.dumps([*rows]))
    return path


def json_columns(folder: Path, rows: Sequence[Row]) -> Path:
    path = folder / "history.json"
    path.write_text(json.dumps({name: [row.get(name) for row in rows] for name in rows[0]}))
    return path


def console(folder: Path, rows: Sequence[Row]) -> Path:
    path = folder / "nohup.out"
    lines = (" ".join(f"{name}: {value!r}" for name, value in row.items()) for row in rows)
    path.write_text("".join(f"INFO:trainer:{line}\n" for line in lines))
    return path


def number_columns(folder: Path, rows: Sequence[Row]) -> Path:
    """Columns whose header names no step and no loss by that word; no cell can be empty."""
    names = ["step", *sorted({name for row in rows for name in row} - {"step"})]
    lines = [f"# n {' '.join(names[1:]).replace('loss', 'nll')}\n"]
    last: Row = dict.fromkeys(names, 0.0)
    for row in rows:
        last = {**last, **row}
        lines.append(" ".join(str(last[name]) for name in names) + "\n")
    path = folder / "numbers.log"
    path.write_text("".join(lines))
    return path


FORMATS: Mapping[str, Callable[[Path, Sequence[Row]], Path]] = {
    writer.__name__: writer
    for writer in (
        jsonl,
        verl,
        trainer_state,
        json_array,
        json_columns,
        table,
        deepspeed,
        tensorboard,
        wandb,
        trackio,
        console,
        number_columns,
    )
}


def logged_config(records: Iterable[Record | None]) -> dict[str, float | str]:
    """Numbers and texts of all METADATA records."""
    parsed = [each for each in records if each and each.event is Event.METADATA]
    return {name: x for each in parsed for name, x in {**each.values, **each.attributes}.items()}
