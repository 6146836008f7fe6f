"""Rows of prompts, completions and rewards in the files that trainers write for each step.

TRL with `log_completions` writes Parquet: step, prompt, completion, one column for each reward
function, advantage; prompt and completion may be conversations. verl with `rollout_data_dir` writes
JSON lines: input, output, gts, score, step, and the values that its reward functions add.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import IO, Any

from sentinel.model.sample_text import SampleFields, sample_fields, select_indices, to_plain_text
from sentinel.readers.rows import MAX_STEP

PROMPT_KEYS, COMPLETION_KEYS = ("prompt", "input"), ("completion", "output", "response")
_NON_REWARD_COLUMNS = frozenset({"step", "advantage", "index", "gts", "idx", "uid", "request_id"})
"""Numeric columns that are not rewards."""
_KNOWN_COLUMNS = frozenset({*PROMPT_KEYS, *COMPLETION_KEYS, "step", "advantage"})
_NUMERIC_TYPES = frozenset({"double", "float", "int64", "int32", "bool"})
"""Column types of rewards in a table."""
_MAX_REWARDS = 32
_MAX_LINE_BYTES = 16 << 20
"""Limit for one row as JSON."""
_MAX_FULL_READ_BYTES = 2 << 20
"""A larger file of JSON lines is sampled rather than read in full."""
_MAX_TABLE_BYTES = 256 << 20
"""A larger Parquet file is not read, to bound memory."""
_MAX_ABS_VALUE = 1e300
"""Larger values are ignored; JSON integers may be too large for a float."""
_BATCH_ROWS = 64
"""Rows of a table that are in memory at a time."""

SampleRow = Mapping[str, Any]


class SampleFileError(ValueError):
    """The file is incomplete, too large, or needs a package that is not installed."""


@dataclass(frozen=True, slots=True)
class TextSample:
    """One row: its step, if it has one, and the values and attributes of a SAMPLE record."""

    step: int | None
    content: SampleFields


def read_samples(path: Path, max_samples: int) -> Iterator[TextSample]:
    """At most `max_samples` rows, evenly spaced, including the highest and the lowest reward.

    Rows without a completion are omitted. In a large file of JSON lines only some rows are
    compared. Raises OSError, SampleFileError, and any error of pyarrow for a damaged table.
    """
    for row in READERS_BY_SUFFIX[path.suffix](path, max_samples):
        prompt, completion = _find_text(row, PROMPT_KEYS), _find_text(row, COMPLETION_KEYS)
        if completion is not None:
            values, texts = sample_fields(prompt or "", completion)
            yield TextSample(_row_step(row), (values | _reward_values(row), texts))


def _read_jsonl(path: Path, max_samples: int) -> Iterator[SampleRow]:
    """Rows of the file; of a large one, those at evenly spaced offsets."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        if file.read(1) != b"\n":
            raise SampleFileError(f"{path} does not end with a complete line")
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
    starts: set[int] = set()
    for index in range(max_samples):
        start = _seek_line_start(file, index * size // max_samples)
        if start < size and start not in starts:
            starts.add(start)
            yield file.readline(_MAX_LINE_BYTES)


def _seek_line_start(file: IO[bytes], offset: int) -> int:
    """Seek the start of the first line at or after `offset`; returns its offset."""
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
        raise SampleFileError(f"{path} is not a complete Parquet file") from error


def _select_table_rows(file: Any, max_samples: int) -> Iterator[SampleRow]:
    rewards = [
        f.name for f in file.schema_arrow if str(f.type) in _NUMERIC_TYPES and _is_reward(f.name)
    ]
    columns = file.read(columns=rewards).to_pydict() if rewards else {}
    totals = [sum(filter(None, row)) for row in zip(*columns.values(), strict=True)]
    selected = set(select_indices(file.metadata.num_rows, max_samples, totals))
    names = [f.name for f in file.schema_arrow if f.name in _KNOWN_COLUMNS or f.name in rewards]
    first = 0
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=names):
        for row in range(batch.num_rows):
            if first + row in selected:
                yield batch.slice(row, 1).to_pylist()[0]
        first += batch.num_rows


READERS_BY_SUFFIX: Mapping[str, Callable[[Path, int], Iterator[SampleRow]]] = {
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}
"""Reader function by file name suffix."""


def _find_text(row: SampleRow, names: tuple[str, ...]) -> str | None:
    return next(
        (text for name in names if (text := to_plain_text(row.get(name))) is not None), None
    )


def _row_step(row: SampleRow) -> int | None:
    step = row.get("step")
    return step if type(step) is int and abs(step) < MAX_STEP else None


def _reward_values(row: SampleRow) -> dict[str, float]:
    """Rewards and advantage; null and NaN, which mean not applicable, are omitted."""
    names = [name for name in row if _is_reward(name)]
    # verl has a single reward, named "score".
    values = {"reward" if name == "score" else f"reward/{name}": row[name] for name in names}
    values = {name: value for name, value in values.items() if _is_finite_number(value)}
    values = dict(list(values.items())[:_MAX_REWARDS])
    if _is_finite_number(row.get("advantage")):
        values["advantage"] = row["advantage"]
    return {name: float(value) for name, value in values.items()}


def _is_reward(name: str) -> bool:
    return name not in _NON_REWARD_COLUMNS and name not in _KNOWN_COLUMNS


def _is_finite_number(value: Any) -> bool:
    return type(value) in {int, float, bool} and abs(value) < _MAX_ABS_VALUE and isfinite(value)
