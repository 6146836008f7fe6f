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

from sentinel.stats.chat_text import to_plain_text
from sentinel.stats.text_selection import select_indices
from sentinel.stats.text_truncation import SampleFields, sample_fields

PROMPT_KEYS, COMPLETION_KEYS = ("prompt", "input"), ("completion", "output", "response")
_NON_REWARD_COLUMNS = frozenset({"step", "advantage", "index", "gts", "idx", "uid", "request_id"})
"""Columns of numbers that are none."""
_KNOWN_COLUMNS = frozenset({*PROMPT_KEYS, *COMPLETION_KEYS, "step", "advantage"})
_NUMERIC_TYPES = frozenset({"double", "float", "int64", "int32", "bool"})
"""Types of such columns in a table."""
_MAX_REWARDS = 32
_MAX_LINE_BYTES = 16 << 20
"""Bytes; one completion with all that is told of it."""
_MAX_FULL_READ_BYTES = 2 << 20
"""Bytes of a file of lines up to which all of them are compared."""
_MAX_TABLE_BYTES = 256 << 20
"""Bytes of a Parquet file; a larger one is not held in memory for a few texts of it."""
_MAX_ABS_VALUE = 1e300
"""An integer may be too large to be a float."""
_MAX_STEP = 2**53
"""No run has this many steps, and no database takes any integer."""
_BATCH_ROWS = 64
"""Rows of a table whose texts are in memory at a time."""

SampleRow = Mapping[str, Any]


class SampleFileError(ValueError):
    """The file is not whole, or too large, or nothing is installed that reads it."""


@dataclass(frozen=True, slots=True)
class TextSample:
    """One row: the step it says, if it does, and values and facts of a SAMPLE record."""

    step: int | None
    content: SampleFields


def read_samples(path: Path, max_samples: int) -> Iterator[TextSample]:
    """At most `most` texts of the file, evenly spaced, with the best and the worst rewarded.

    Rows without a completion are left out. Of a large file of lines not all are compared.

    Raises OSError, SampleFileError, and whatever a damaged table leads its reader to.
    """
    for row in READERS_BY_SUFFIX[path.suffix](path, max_samples):
        prompt, completion = _find_text(row, PROMPT_KEYS), _find_text(row, COMPLETION_KEYS)
        if completion is not None:
            values, facts = sample_fields(prompt or "", completion)
            yield TextSample(_row_step(row), (values | _reward_values(row), facts))


def _read_jsonl(path: Path, max_samples: int) -> Iterator[SampleRow]:
    """Rows of the file; of a large one, those at evenly spaced places, whatever its size."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        if file.read(1) != b"\n":
            raise SampleFileError(f"{path} does not end with a whole line")
        lines = (
            _all_lines(file)
            if size <= _MAX_FULL_READ_BYTES
            else _spaced_lines(file, size, max_samples)
        )
        rows = [row for line in lines if (row := _parse_line(line)) is not None]
    totals = [sum(_reward_values(row).values()) for row in rows]
    yield from (rows[at] for at in select_indices(len(rows), max_samples, totals))


def _all_lines(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    return iter(file)


def _spaced_lines(file: IO[bytes], size: int, max_samples: int) -> Iterator[bytes]:
    seen: set[int] = set()
    for place in range(max_samples):
        start = _seek_line_start(file, place * size // max_samples)
        if start < size and start not in seen:
            seen.add(start)
            yield file.readline(_MAX_LINE_BYTES)


def _seek_line_start(file: IO[bytes], offset: int) -> int:
    """Go to the beginning of the first line at `at` or behind it; where that is."""
    file.seek(max(0, offset - 1))
    if offset:
        while (rest := file.readline(_MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
            pass
    return file.tell()


def _parse_line(line: bytes) -> SampleRow | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _read_parquet(path: Path, max_samples: int) -> Iterator[SampleRow]:
    try:
        from pyarrow import ArrowInvalid, parquet  # noqa: PLC0415
    except ImportError as error:
        remedy = "pip install 'train-sentinel[samples]'"
        raise SampleFileError(f"{path} cannot be read without pyarrow: {remedy}") from error
    if path.stat().st_size > _MAX_TABLE_BYTES:
        raise SampleFileError(f"{path} is larger than {_MAX_TABLE_BYTES >> 20} MiB")
    try:
        with parquet.ParquetFile(path) as file:
            yield from _select_table_rows(file, max_samples)
    except ArrowInvalid as error:
        raise SampleFileError(f"{path} is no whole Parquet file") from error


def _select_table_rows(file: Any, max_samples: int) -> Iterator[SampleRow]:
    numbers = [
        f.name for f in file.schema_arrow if str(f.type) in _NUMERIC_TYPES and _is_reward(f.name)
    ]
    columns = file.read(columns=numbers).to_pydict() if numbers else {}
    totals = [sum(filter(None, row)) for row in zip(*columns.values(), strict=True)]
    wanted = set(select_indices(file.metadata.num_rows, max_samples, totals))
    known = [f.name for f in file.schema_arrow if f.name in _KNOWN_COLUMNS or f.name in numbers]
    first = 0
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=known):
        here = [at for at in range(batch.num_rows) if first + at in wanted]
        yield from (batch.slice(at, 1).to_pylist()[0] for at in here)
        first += batch.num_rows


READERS_BY_SUFFIX: Mapping[str, Callable[[Path, int], Iterator[SampleRow]]] = {
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}
"""How a file is read, by the ending of its name."""


def _find_text(row: SampleRow, names: tuple[str, ...]) -> str | None:
    return next(
        (text for name in names if (text := to_plain_text(row.get(name))) is not None), None
    )


def _row_step(row: SampleRow) -> int | None:
    step = row.get("step")
    return step if type(step) is int and abs(step) < _MAX_STEP else None


def _reward_values(row: SampleRow) -> dict[str, float]:
    """Rewards and advantage; what does not apply to this text is null, or not a number."""
    names = [name for name in row if _is_reward(name)]
    # verl has one reward, and calls it so.
    found = {"reward" if name == "score" else f"reward/{name}": row[name] for name in names}
    found = {name: value for name, value in found.items() if _is_finite_number(value)}
    found = dict(list(found.items())[:_MAX_REWARDS])
    if _is_finite_number(row.get("advantage")):
        found["advantage"] = row["advantage"]
    return {name: float(value) for name, value in found.items()}


def _is_reward(name: str) -> bool:
    return name not in _NON_REWARD_COLUMNS and name not in _KNOWN_COLUMNS


def _is_finite_number(value: Any) -> bool:
    return type(value) in {int, float, bool} and abs(value) < _MAX_ABS_VALUE and isfinite(value)
