"""JSONL: one JSON object a line, flat or nested, as most trainers and trackers can write.

NaN and Infinity may be bare tokens or strings. A line that cannot be used is counted and passed
over. A line with an "event" of `start` or `save` tells of that instead of a step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Any

from sentinel.record import WHOLE_RUN, Event, Record
from sentinel.sources.reading import Reading
from sentinel.sources.rows import LIMIT_KEYS, Rows

LONGEST_LINE = 2**20
"""Bytes; a longer line is passed over without being held in memory."""


NESTED = re.compile(rb'\s*\{\s*"step"\s*:\s*\d+\s*,\s*"data"\s*:\s*\{')
"""How lines of verl's own file logger begin; a source of its own reads them."""


def recognises(path: Path, head: bytes) -> bool:
    """Whether the first line that is not blank is a whole JSON object, or begins a long one."""
    if path.is_dir() or NESTED.match(head):
        return False
    lines = head.lstrip().split(b"\n", 1)
    if len(lines) == 1 and len(head) > 1000:
        return lines[0].startswith(b"{") and b'"log_history"' not in lines[0]
    return _object(lines[0]) is not None


def read(path: Path) -> Reading:
    """Records of the file. Raises OSError, while iterating, if it cannot be opened."""

    def records(reading: Reading) -> Iterator[Record]:
        with path.open("rb") as file:
            yield from _records(path, file, reading)

    return Reading(records)


def _records(path: Path, file: IO[bytes], reading: Reading) -> Iterator[Record]:
    found = _rows(file, reading)
    first = next(found, None)
    if first is None:
        return
    # verl's own file logger nests under "data", and its encoder turns NaN into null.
    rows = Rows(run=path.stem, null_is_nan=first.keys() == {"step", "data"})
    begun = False
    for row in chain([first], found):
        record = rows.record(row)
        if record is None:
            reading.skipped += 1
            continue
        if not begun and record.event is not Event.START:
            yield _start(record, rows.about.facts)
        begun = True
        yield record


def _start(record: Record, about: Mapping[str, str]) -> Record:
    limits = [record.values[key] for key in LIMIT_KEYS if key in record.values]
    return Record(
        run=record.run,
        rank=WHOLE_RUN,
        step=record.step,
        time=record.time,
        event=Event.START,
        values={"max_steps": limits[0]} if limits else {},
        facts=about,
    )


def _rows(file: IO[bytes], reading: Reading) -> Iterator[dict[str, Any]]:
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            while line and not line.endswith(b"\n"):
                line = file.readline(LONGEST_LINE)
            reading.skipped += 1
        elif line.strip():
            row = _object(line)
            if row is None:
                reading.skipped += 1
            else:
                yield row


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line.decode("utf-8", "surrogatepass").removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
