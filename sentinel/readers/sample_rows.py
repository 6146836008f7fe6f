"""Sample rows: a file of prompts, completions and rewards, as trainers write one for each step.

TRL with `log_completions` writes Parquet: step, prompt, completion, one column for each reward
function, advantage; prompt and completion may be conversations. verl with `rollout_data_dir`
writes JSON lines: input, output, gts, score, step, and what its reward functions add.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import IO, Any

from sentinel.stats.chat_text import plain
from sentinel.stats.text_selection import choice
from sentinel.stats.text_truncation import Told, told

PROMPTS, COMPLETIONS = ("prompt", "input"), ("completion", "output", "response")
_NO_REWARDS = frozenset({"step", "advantage", "index", "gts", "idx", "uid", "request_id"})
"""Columns of numbers that are none."""
_TOLD = frozenset({*PROMPTS, *COMPLETIONS, "step", "advantage"})
_NUMERIC = frozenset({"double", "float", "int64", "int32", "bool"})
"""Types of such columns in a table."""
_REWARDS = 32
_LONGEST_LINE = 16 << 20
"""Bytes; one completion with all that is told of it."""
_READ_WHOLE = 2 << 20
"""Bytes of a file of lines up to which all of them are compared."""
_LARGEST_TABLE = 256 << 20
"""Bytes of a Parquet file; a larger one is not held in memory for a few texts of it."""
_FAR = 1e300
"""An integer may be too large to be a float."""
_FAR_STEP = 2**53
"""No run has this many steps, and no database takes any integer."""
_AT_ONCE = 64
"""Rows of a table whose texts are in memory at a time."""

Row = Mapping[str, Any]


class SampleFileError(ValueError):
    """The file is not whole, or too large, or nothing is installed that reads it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One row: the step it says, if it does, and values and facts of a SAMPLE record."""

    step: int | None
    told: Told


def samples(path: Path, most: int) -> Iterator[Sample]:
    """At most `most` texts of the file, evenly spaced, with the best and the worst rewarded.

    Rows without a completion are left out. Of a large file of lines not all are compared.

    Raises OSError, SampleFileError, and whatever a damaged table leads its reader to.
    """
    for row in READERS[path.suffix](path, most):
        prompt, completion = _text(row, PROMPTS), _text(row, COMPLETIONS)
        if completion is not None:
            values, facts = told(prompt or "", completion)
            yield Sample(_step(row), (values | _numbers(row), facts))


def _lines(path: Path, most: int) -> Iterator[Row]:
    """Rows of the file; of a large one, those at evenly spaced places, whatever its size."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        if file.read(1) != b"\n":
            raise SampleFileError(f"{path} does not end with a whole line")
        lines = _all(file) if size <= _READ_WHOLE else _some(file, size, most)
        rows = [row for line in lines if (row := _row(line)) is not None]
    totals = [sum(_numbers(row).values()) for row in rows]
    yield from (rows[at] for at in choice(len(rows), most, totals))


def _all(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    return iter(file)


def _some(file: IO[bytes], size: int, most: int) -> Iterator[bytes]:
    seen: set[int] = set()
    for place in range(most):
        start = _line_from(file, place * size // most)
        if start < size and start not in seen:
            seen.add(start)
            yield file.readline(_LONGEST_LINE)


def _line_from(file: IO[bytes], at: int) -> int:
    """Go to the beginning of the first line at `at` or behind it; where that is."""
    file.seek(max(0, at - 1))
    if at:
        while (rest := file.readline(_LONGEST_LINE)) and not rest.endswith(b"\n"):
            pass
    return file.tell()


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _table(path: Path, most: int) -> Iterator[Row]:
    try:
        from pyarrow import ArrowInvalid, parquet  # noqa: PLC0415
    except ImportError as error:
        remedy = "pip install 'train-sentinel[samples]'"
        raise SampleFileError(f"{path} cannot be read without pyarrow: {remedy}") from error
    if path.stat().st_size > _LARGEST_TABLE:
        raise SampleFileError(f"{path} is larger than {_LARGEST_TABLE >> 20} MiB")
    try:
        with parquet.ParquetFile(path) as file:
            yield from _rows(file, most)
    except ArrowInvalid as error:
        raise SampleFileError(f"{path} is no whole Parquet file") from error


def _rows(file: Any, most: int) -> Iterator[Row]:
    numbers = [f.name for f in file.schema_arrow if str(f.type) in _NUMERIC and _rewards(f.name)]
    columns = file.read(columns=numbers).to_pydict() if numbers else {}
    totals = [sum(filter(None, row)) for row in zip(*columns.values(), strict=True)]
    wanted = set(choice(file.metadata.num_rows, most, totals))
    known = [f.name for f in file.schema_arrow if f.name in _TOLD or f.name in numbers]
    first = 0
    for batch in file.iter_batches(batch_size=_AT_ONCE, columns=known):
        here = [at for at in range(batch.num_rows) if first + at in wanted]
        yield from (batch.slice(at, 1).to_pylist()[0] for at in here)
        first += batch.num_rows


READERS: Mapping[str, Callable[[Path, int], Iterator[Row]]] = {
    ".jsonl": _lines,
    ".parquet": _table,
}
"""How a file is read, by the ending of its name."""


def _text(row: Row, names: tuple[str, ...]) -> str | None:
    return next((text for name in names if (text := plain(row.get(name))) is not None), None)


def _step(row: Row) -> int | None:
    step = row.get("step")
    return step if type(step) is int and abs(step) < _FAR_STEP else None


def _numbers(row: Row) -> dict[str, float]:
    """Rewards and advantage; what does not apply to this text is null, or not a number."""
    names = [name for name in row if _rewards(name)]
    # verl has one reward, and calls it so.
    found = {"reward" if name == "score" else f"reward/{name}": row[name] for name in names}
    found = {name: value for name, value in found.items() if _finite(value)}
    found = dict(list(found.items())[:_REWARDS])
    if _finite(row.get("advantage")):
        found["advantage"] = row["advantage"]
    return {name: float(value) for name, value in found.items()}


def _rewards(name: str) -> bool:
    return name not in _NO_REWARDS and name not in _TOLD


def _finite(value: Any) -> bool:
    return type(value) in {int, float, bool} and abs(value) < _FAR and isfinite(value)
