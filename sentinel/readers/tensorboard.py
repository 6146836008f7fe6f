"""TensorBoard: event files of one run, as a file or a directory, read as they are written.

Subdirectories are parts of the run if writers create them: `train` and `eval`, one for each curve
of `add_scalars`, and those in which HParams stores the configuration.

Every number is an event of its own; the numbers of one step that were written together are one row.
A restarted run writes a new file. If that file repeats tags from a step that was passed already, it
is a new attempt.

The files are decoded here and in `event_file`, `scalar_event` and `protobuf`, since the
`tensorboard` package is a heavy dependency.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import merge
from pathlib import Path

from sentinel.model.record import Record
from sentinel.readers.config_event import decode_config
from sentinel.readers.event_file import HEADER_BYTES, EventFile
from sentinel.readers.log_config import config_record, read_config_file, text_metadata
from sentinel.readers.log_reader import LogReader
from sentinel.readers.media_event import decode_media
from sentinel.readers.rows import (
    MAX_ROW_GAP_SECONDS,
    RowConverter,
    StepFilter,
    start_record,
)
from sentinel.readers.scalar_event import ScalarDecoder
from sentinel.signals.framework_config import ConfigMetadata

FORMAT_NAME = "TensorBoard"

FILE_NAME_PART = "tfevents"
OWN_SUFFIX = ".sentinel"
"""Of the files that sentinel itself writes into the directory of a run."""
VERSION_PREFIX = b"brain.Event:"
"""Text in the first event of every file."""

SPLIT_FOLDERS = ("train", "training", "eval", "evaluation", "val", "valid", "validation", "test")
"""Subdirectories into which writers split one run."""

_HPARAMS_FOLDER = re.compile(r"\d+\.\d+")
"""Name of the subdirectory that `add_hparams` creates."""

MAX_FILES = 256
MAX_NAMES_SHOWN = 10


def can_read(path: Path, head: bytes) -> bool:
    """Whether this is an event file, by its first event, or a directory with some."""
    if path.is_dir():
        return bool(_run_folders(path))
    return VERSION_PREFIX in head[HEADER_BYTES : HEADER_BYTES + 64] or (
        FILE_NAME_PART in path.name and head[4:8] == bytes(4)
    )


def read(path: Path) -> LogReader:
    """Records of the run. Raises OSError or ValueError, while iterating, if unreadable."""

    def records(reader: LogReader) -> Iterator[Record | None]:
        return TensorBoardRun(path, reader).records()

    return LogReader(records)


def log_files(folder: Path) -> list[Path]:
    """The event files of the run in a directory."""
    return sorted(_run_files(folder))


def is_run_folder(folder: Path) -> bool:
    """Whether the directory itself, or its parts, hold event files."""
    return bool(_event_files(folder)) or any(
        (folder / part).is_dir() and _event_files(folder / part) for part in SPLIT_FOLDERS
    )


def is_event_file(path: Path) -> bool:
    """Whether a file is an event file of a training, by its name."""
    return FILE_NAME_PART in path.name and path.suffix != OWN_SUFFIX


def is_part_name(name: str) -> bool:
    """Whether a subdirectory of a run is part of it, by its name."""
    return name in SPLIT_FOLDERS or _HPARAMS_FOLDER.fullmatch(name) is not None


def is_part(folder: Path) -> bool:
    """Whether a subdirectory of a run holds one curve of `add_scalars`, by its first tags."""
    tags, decoder = FolderTags(folder.name), ScalarDecoder()
    for file in _event_files(folder)[:1]:
        try:
            for payload in EventFile(file).poll():
                for *_, tag, _ in decoder.decode(payload):
                    return bool(tags[tag])
        except (OSError, ValueError):
            break
    return False


def _run_folder(path: Path) -> Path | None:
    """The directory itself, or the one below it with all event files, such as `runs/<date>`.

    None if there are none yet. Raises ValueError if there are several.
    """
    folders = _run_folders(path)
    if len(folders) > 1:
        names = ", ".join(str(folder.relative_to(path)) for folder in folders[:MAX_NAMES_SHOWN])
        raise ValueError(f"it holds the event files of {len(folders)} runs: name one of {names}")
    return folders[0] if folders else None


def _run_folders(path: Path) -> list[Path]:
    """Directories of runs, without those that are parts of a run."""
    if _event_files(path) or any(_event_files(path / part) for part in SPLIT_FOLDERS):
        return [path]
    if any(path.glob("checkpoint-*")):
        return []
    parents = {file.parent for depth in ("*", "*/*") for file in _event_files(path, depth)}
    runs = {folder.parent if folder.name in SPLIT_FOLDERS else folder for folder in parents}
    if len(runs) > 1 and (path / "trainer_state.json").is_file():
        return []
    return sorted(folder for folder in runs if not runs.intersection(folder.parents))


def _run_files(folder: Path) -> list[Path]:
    """Event files of a run and its parts. A directory with more than MAX_FILES holds other runs."""
    own, nested = _event_files(folder), _event_files(folder, "*")
    if len(own) + len(nested) > MAX_FILES:
        nested = [file for file in nested if file.parent.name in SPLIT_FOLDERS]
    return own + nested


def _event_files(folder: Path, depth: str = "") -> list[Path]:
    return [
        file
        for file in folder.glob(f"{depth}/*{FILE_NAME_PART}*".lstrip("/"))
        if is_event_file(file) and file.is_file()
    ]


class FolderTags(dict[str, str]):
    """Qualified tags by tag, for the event files in the subdirectory `folder` ("" for the run's).

    A qualified tag is "" if numbers of that tag in that directory do not belong to the run.
    """

    def __init__(self, folder: str = "") -> None:
        super().__init__()
        self.folder = folder
        self.holds_run_config = (
            folder in ("", *SPLIT_FOLDERS) or _HPARAMS_FOLDER.fullmatch(folder) is not None
        )
        """Whether a configuration in the directory is this run's."""

    def __missing__(self, tag: str) -> str:
        name = self[tag] = _qualified_tag(self.folder, tag)
        return name


def _qualified_tag(folder: str, tag: str) -> str:
    """The tag with the part of the run that the directory stands for.

    >>> _qualified_tag("train", "loss"), _qualified_tag("Loss_eval", "Loss")
    ('train/loss', 'eval/Loss')
    >>> _qualified_tag("another-run", "loss")
    ''
    """
    if not folder or (folder in SPLIT_FOLDERS and tag.partition("/")[0] == folder):
        return tag
    if folder in SPLIT_FOLDERS:
        return f"{folder}/{tag}"
    # `add_scalars` creates a directory for each of the curves under one tag.
    prefix = tag.replace("/", "_") + "_"
    return f"{folder.removeprefix(prefix)}/{tag}" if folder.startswith(prefix) else ""


@dataclass
class EventLog:
    """Rows of one event file, up to its current end."""

    file: EventFile
    reader: LogReader
    decoder: ScalarDecoder
    folder_tags: FolderTags
    pending_config: ConfigMetadata = field(default_factory=dict)
    """Configuration that was read but not yet returned."""
    pending_row: dict[str, float] = field(default_factory=dict)
    """Numbers of `step` at `time`, which may be incomplete."""
    seen_tags: set[str] = field(default_factory=set)
    step: int = 0
    time: float = 0.0
    last_growth_at: float = 0.0

    def complete_rows(self) -> Iterator[TimedRow]:
        """The new complete rows; the last one once nothing was added to it for a while."""
        is_first_read = not self.last_growth_at
        while payloads := self.file.poll():
            self.last_growth_at = self.reader.clock()
            yield from self._add_payloads(payloads, self.file.payload_offsets)
        if is_first_read and self.last_growth_at:
            # A file without a writer is complete at once.
            self.last_growth_at = min(self.last_growth_at, self.file.path.stat().st_mtime)
        self._count_damage()
        idle = self.reader.clock() - self.last_growth_at
        if self.pending_row and (not self.reader.is_live or idle >= MAX_ROW_GAP_SECONDS):
            yield self._finish_row()

    def _add_payloads(self, payloads: list[bytes], offsets: list[int]) -> Iterator[TimedRow]:
        for payload, offset in zip(payloads, offsets, strict=True):
            try:
                scalars = self.decoder.decode(payload)
            except ValueError:
                self.reader.skipped += 1
                continue
            if not scalars and self.folder_tags.holds_run_config:
                if (config := decode_config(payload)) is not None:
                    self.pending_config |= config.metadata
                    self.reader.settings |= config.settings
                for media in decode_media(payload, self.file.path, offset):
                    self.reader.on_media(media)
            for time, step, logged_tag, value in scalars:
                tag, row = self.folder_tags[logged_tag], self.pending_row
                if not tag:
                    continue
                # Numbers of one step that are further apart were not written together.
                if row and (
                    step != self.step or tag in row or abs(time - self.time) > MAX_ROW_GAP_SECONDS
                ):
                    yield self._finish_row()
                self.pending_row[tag] = value
                self.step, self.time = step, time

    def _finish_row(self) -> TimedRow:
        row, self.pending_row = self.pending_row, {}
        count = len(row)
        # The event's step and time take precedence over tags of these names.
        row["step"], row["time"] = self.step, self.time
        return self.time, self, row, count

    def _count_damage(self) -> None:
        self.reader.skipped += self.file.damaged_records
        self.file.damaged_records = 0


class TensorBoardRun:
    """All event files of one run, with their rows in the order of time."""

    def __init__(self, path: Path, reader: LogReader) -> None:
        self.path, self.reader = path, reader
        self.folder = _run_folder(path) if path.is_dir() else None
        self.logs: dict[Path, EventLog] = {}
        self.decoder = ScalarDecoder()
        self.converter = RowConverter(run=(self.folder or path.parent).resolve().name)
        self.converter.metadata.configure_keys(reader.keys)
        config = read_config_file(path)
        self.pending_config = config.metadata if config is not None else ConfigMetadata()
        reader.settings |= config.settings if config is not None else {}
        self.seen_tags: set[str] = set()
        self.max_step = -1
        self.attempt = 0
        self.has_started = False

    def records(self) -> Iterator[Record | None]:
        while True:
            self._find_new_files()
            logs = [log.complete_rows() for log in self.logs.values()]
            for _, log, row, count in merge(*logs, key=lambda row: row[0]):
                self.reader.position += count
                yield from self._row_records(log, row)
            if not self.reader.is_live:
                return
            self.reader.pending_count = sum(len(log.pending_row) for log in self.logs.values())
            yield None

    def _find_new_files(self) -> None:
        """Add the event files that were created since the last call."""
        if self.folder is None and self.path.is_dir():
            self.folder = _run_folder(self.path)
        folder = self.folder
        files = _run_files(folder) if folder else [self.path]
        if len(files) > MAX_FILES:
            raise ValueError(f"it holds {len(files)} event files, more than {MAX_FILES}: name one")
        for file in sorted(files):
            if file not in self.logs:
                subfolder = file.parent.name if folder and file.parent != folder else ""
                self.logs[file] = EventLog(
                    EventFile(file), self.reader, self.decoder, FolderTags(subfolder)
                )

    def _pop_config(self) -> ConfigMetadata:
        """Configuration that was read since the last call."""
        config, self.pending_config = self.pending_config, ConfigMetadata()
        for log in self.logs.values():
            config |= log.pending_config
            log.pending_config = ConfigMetadata()
        self.converter.metadata.update_metadata(text_metadata(config))
        return config

    def _row_records(self, log: EventLog, row: dict[str, float]) -> Iterator[Record]:
        step = int(row["step"])
        is_restart = (
            not log.seen_tags and step <= self.max_step and not self.seen_tags.isdisjoint(row)
        )
        if is_restart:
            self.attempt, self.converter.step_filter = self.attempt + 1, StepFilter()
        log.seen_tags.update(row)
        config = self._pop_config()
        record = self.converter.to_record(row)
        if record is None:
            self.reader.skipped += 1
            return
        if is_restart or not self.has_started:
            first = replace(record, attempt=self.attempt)
            yield start_record(first, self.converter.metadata.metadata)
        if config:
            yield replace(config_record(config, record), attempt=self.attempt)
        self.has_started = True
        self.seen_tags.update(row.keys() - {"step", "time"})
        self.max_step = step if is_restart else max(self.max_step, step)
        yield replace(record, attempt=self.attempt) if self.attempt else record


TimedRow = tuple[float, EventLog, dict[str, float], int]
"""Time, file, row, and how many numbers are in the row."""
