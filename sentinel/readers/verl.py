"""verl: the lines of its file logger, `{"step": 1, "data": {...}}`, with the saves among them.

Its encoder writes null for NaN and infinity. A restart of the training begins the file anew, so
what it holds is always of one attempt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sentinel.model.record import Event, Record
from sentinel.readers import jsonl
from sentinel.readers.log_reader import LogReader

CHECKPOINT_KEY = "timing_s/save_checkpoint"
"""A key that only the lines of steps with a checkpoint have."""


def can_read(path: Path, head: bytes) -> bool:
    """Whether the first line is one of that file, even if it is longer than the head."""
    return not path.is_dir() and jsonl.VERL_LINE.match(head) is not None


def read(path: Path) -> LogReader:
    """Records of the file. Raises OSError, while iterating, if it cannot be opened."""

    def records(reading: LogReader) -> Iterator[Record | None]:
        lines = jsonl.read(path)
        for record in lines.follow() if reading.is_live else lines:
            reading.skipped, reading.position = lines.skipped, lines.position
            yield record
            if record and record.event is Event.STEP and CHECKPOINT_KEY in record.values:
                yield replace(record, event=Event.SAVE, values={})
        reading.skipped = lines.skipped

    return LogReader(records)
