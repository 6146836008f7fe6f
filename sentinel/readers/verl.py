"""verl: the JSON lines of its file logger, `{"step": 1, "data": {...}}`, including checkpoints.

verl encodes NaN and infinity as null. A restart of the training starts the file over, so a file
holds one attempt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sentinel.model.record import Event, Record
from sentinel.readers import jsonl
from sentinel.readers.log_reader import LogReader

FORMAT_NAME = "verl"

CHECKPOINT_KEY = "timing_s/save_checkpoint"
"""A key that only steps with a checkpoint have."""


def can_read(path: Path, head: bytes) -> bool:
    """Whether the first line is from verl's file logger, even if it is longer than the head."""
    return not path.is_dir() and jsonl.VERL_LINE.match(head) is not None


def read(path: Path) -> LogReader:
    """Records of the file. Raises OSError, while iterating, if it cannot be opened."""

    def records(reader: LogReader) -> Iterator[Record | None]:
        lines = replace(jsonl.read(path), keys=reader.keys)
        for record in lines.follow() if reader.is_live else lines:
            reader.skipped, reader.position = lines.skipped, lines.position
            reader.settings, reader.unread_lines = lines.settings, lines.unread_lines
            reader.unread_counts = lines.unread_counts
            yield record
            if record and record.event is Event.STEP and CHECKPOINT_KEY in record.values:
                yield replace(record, event=Event.SAVE, values={})
        reader.skipped = lines.skipped

    return LogReader(records)
