"""The reader of one log: its records, how many rows were unreadable, and the position reached."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from sentinel.model.record import Event, Record
from sentinel.readers.log_config import LoggedConfig, config_record, read_config_file, text_metadata
from sentinel.readers.media import LoggedMedia
from sentinel.readers.rows import MAX_STEPS_KEYS, RowConverter, start_record
from sentinel.signals.framework_config import ConfigMetadata

HEAD_BYTES = 4096
"""Size of the `head` that a reader's `can_read` gets: the first bytes of the file."""

MAX_UNREAD_LINES = 20
"""Lines without a record that are kept as examples; the first ones of each reason."""
MAX_UNREAD_PER_REASON = 3
MAX_REASONS = 32
MAX_EXCERPT_CHARACTERS = 120

Row = Mapping[str, Any]
RowSource = Callable[["LogReader"], Iterator[Row | LoggedConfig | None]]


class LogRestartedError(Exception):
    """The file is shorter than what was read of it, or was replaced by another one."""


class UnreadLine(NamedTuple):
    """A line that gave no record; `number` counts from 1, and is 0 where a log has no lines."""

    number: int
    reason: str
    excerpt: str


@dataclass
class LogReader:
    """Iterates over the records of a log, in the order of the file.

    `skipped` counts lines or rows that cannot be read: not JSON, too long, or without a number; it
    is complete after the iteration. `position` is how far into the log the last record reaches; it
    only grows, and is the same each time that log is read. `pending_count` is by how much
    `position` grows once the rows that were read but may be incomplete are returned. `notice` is a
    message for the user about a choice made in reading, mostly "". `clock` returns seconds since
    the epoch. `keys` are logged keys with the signals that they stand for, from the settings.
    `on_media` is called with each image and histogram, before the record of their row is returned.
    `settings` is the configuration that was read so far, with nested settings as they are stored.
    `unread_lines` are examples of lines without a record, and `unread_counts` how many there are by
    reason; a line of a text that is no line of metrics is in both, but not in `skipped`, and so is
    a row that is left out, since it repeats another one or is of another writer. `line`,
    `line_number` and `problem` are the last line, its number, and why it gives an empty row.
    `writer` is the name of the one whose rows are read of a log that several write in turns, empty
    for the first; `other_trainings` are the names of the others, once they are known.
    """

    iterate_records: Callable[[LogReader], Iterator[Record | None]]
    skipped: int = 0
    position: int = 0
    pending_count: int = 0
    is_live: bool = False
    clock: Callable[[], float] = time.time
    notice: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    on_media: Callable[[LoggedMedia], None] = lambda _: None
    settings: dict[str, Any] = field(default_factory=dict)
    line: bytes = b""
    line_number: int = 0
    problem: str = ""
    unread_lines: list[UnreadLine] = field(default_factory=list)
    unread_counts: Counter[str] = field(default_factory=Counter)
    writer: str = ""
    other_trainings: list[str] = field(default_factory=list)

    def note_unread(self, line: bytes, reason: str, *, is_skipped: bool = True) -> None:
        """Count a line without a record, and keep it as an example if there are few of its kind."""
        self.skipped += is_skipped
        if reason not in self.unread_counts and len(self.unread_counts) >= MAX_REASONS:
            reason = "for other reasons"
        self.unread_counts[reason] += 1
        if (
            self.unread_counts[reason] <= MAX_UNREAD_PER_REASON
            and len(self.unread_lines) < MAX_UNREAD_LINES
        ):
            text = line[: 4 * MAX_EXCERPT_CHARACTERS].decode("utf-8", "replace").strip()
            excerpt = text[:MAX_EXCERPT_CHARACTERS]
            self.unread_lines.append(UnreadLine(self.line_number, reason, excerpt))

    def __iter__(self) -> Iterator[Record]:
        self._reset(is_live=False)
        return (record for record in self.iterate_records(self) if record is not None)

    def follow(self) -> Iterator[Record | None]:
        """The records, then those appended later; None whenever there is no more for now.

        The iterator never ends. A log that is started over yields a START of the next attempt.
        """
        self._reset(is_live=True)
        return self.iterate_records(self)

    def _reset(self, *, is_live: bool) -> None:
        self.skipped = self.position = self.pending_count = 0
        self.settings, self.unread_lines, self.unread_counts = {}, [], Counter()
        self.other_trainings = []
        self.is_live = is_live


def row_reader(make_converter: Callable[[Row], RowConverter], iterate_rows: RowSource) -> LogReader:
    """A LogReader over rows. `make_converter` builds an attempt's converter from its first row.

    `iterate_rows` yields rows, configurations, and None whenever a live log has no more for now. An
    empty row is counted as skipped. A START record comes first. A configuration before the first
    row decides what the keys mean, and its record follows the START.
    """

    def records(reader: LogReader) -> Iterator[Record | None]:
        attempt = 0
        while True:
            try:
                for record in _convert_rows(make_converter, iterate_rows(reader), reader):
                    yield replace(record, attempt=attempt) if record and attempt else record
            except LogRestartedError:
                attempt, reader.position = attempt + 1, 0
                continue
            return

    return LogReader(records)


def file_reader(path: Path, run: str, follow: RowSource) -> LogReader:
    """A LogReader over the rows that `follow` yields, after the configuration beside the log."""

    def rows(reader: LogReader) -> Iterator[Row | LoggedConfig | None]:
        if (config := read_config_file(path)) is not None:
            yield config
        yield from follow(reader)

    return row_reader(lambda _: RowConverter(run=run), rows)


def _convert_rows(
    make_converter: Callable[[Row], RowConverter],
    items: Iterator[Row | LoggedConfig | None],
    reader: LogReader,
) -> Iterator[Record | None]:
    converter: RowConverter | None = None
    started = False
    known, pending = ConfigMetadata(), ConfigMetadata()
    for item in items:
        if item is None:
            yield None
            continue
        if isinstance(item, LoggedConfig):
            reader.settings |= item.settings
            pending |= {n: value for n, value in item.metadata.items() if known.get(n) != value}
            known |= item.metadata
            continue
        if converter is None and item:
            converter = make_converter(item)
            converter.metadata.configure_keys(reader.keys)
            converter.select_writer(reader.writer)
        if converter is not None and pending:
            converter.metadata.update_metadata(text_metadata(pending))
        record = converter.to_record(item) if converter else None
        if converter is None or record is None:
            _note_row_without_record(converter, reader)
            continue
        if not started and record.event is not Event.START:
            yield _start_record(record, converter.metadata.metadata)
        started = True
        if pending and record.event is not Event.START:
            yield config_record(pending, record)
            pending = ConfigMetadata()
        yield record


def _note_row_without_record(converter: RowConverter | None, reader: LogReader) -> None:
    problem = reader.problem or (converter.problem if converter else "")
    is_skipped = converter is None or not converter.problem
    reader.note_unread(reader.line, problem or "it holds no number", is_skipped=is_skipped)
    reader.problem = ""
    if converter is not None:
        reader.other_trainings = converter.other_trainings
    if reader.is_live and reader.other_trainings:
        reader.notice = (
            "several trainings are written to it in turns, and only the first one is evaluated; "
            "`sentinel replay` evaluates each"
        )


def _start_record(first: Record, metadata: Mapping[str, str]) -> Record:
    limits = [first.values[key] for key in MAX_STEPS_KEYS if key in first.values]
    return start_record(first, metadata, {"max_steps": limits[0]} if limits else {})
