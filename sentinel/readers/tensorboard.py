"""TensorBoard: event files of one run, a file or a folder of them, read as they are written.

Folders within that of the run are parts of it where a writer makes them so: `train` and `eval`, one
for each curve of `add_scalars`, and those in which HParams puts what the run was configured with.

Every number comes as an event of its own; those of one step, written together, are one row. A run
that was begun again writes a new file: where it says again what was said before, from a step that
was passed already, it is a new attempt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import merge
from pathlib import Path

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.readers.config_event import decode_config
from sentinel.readers.event_file import HEADER_BYTES, EventFile
from sentinel.readers.log_config import config_record, read_config_file, text_metadata
from sentinel.readers.log_reader import LogReader
from sentinel.readers.rows import RowConverter
from sentinel.readers.scalar_event import ScalarDecoder
from sentinel.readers.step_filter import StepFilter
from sentinel.readers.tensorboard_dirs import SPLIT_FOLDERS, FolderTags
from sentinel.signals.framework_config import ConfigMetadata

FILE_NAME_PART = "tfevents"
VERSION_PREFIX = b"brain.Event:"
"""What the first event of every file says of its version."""

MAX_FILES = 256
MAX_NAMES_SHOWN = 10
MAX_ROW_GAP_SECONDS = 5.0
"""Numbers of one step that are further apart were not written together."""


def can_read(path: Path, head: bytes) -> bool:
    """Whether this is an event file, by its first event, or a folder of some."""
    if path.is_dir():
        return bool(_run_folders(path))
    return VERSION_PREFIX in head[HEADER_BYTES : HEADER_BYTES + 64] or (
        FILE_NAME_PART in path.name and head[4:8] == bytes(4)
    )


def read(path: Path) -> LogReader:
    """Records of the run. Raises OSError or ValueError, while iterating, if unreadable."""

    def records(reading: LogReader) -> Iterator[Record | None]:
        return TensorBoardRun(path, reading).records()

    return LogReader(records)


def _run_folder(path: Path) -> Path | None:
    """The folder itself, or the one below it that has all the event files, as `runs/<date>`.

    Raises ValueError if there are several.
    """
    found = _run_folders(path)
    if len(found) > 1:
        names = ", ".join(str(folder.relative_to(path)) for folder in found[:MAX_NAMES_SHOWN])
        raise ValueError(f"it holds the event files of {len(found)} runs: name one of {names}")
    return found[0] if found else None


def _run_folders(path: Path) -> list[Path]:
    """Folders of runs, as far as they are not parts of one."""
    if _event_files(path) or any(_event_files(path / part) for part in SPLIT_FOLDERS):
        return [path]
    if any(path.glob("checkpoint-*")):
        return []
    found = {file.parent for depth in ("*", "*/*") for file in _event_files(path, depth)}
    whole = {folder.parent if folder.name in SPLIT_FOLDERS else folder for folder in found}
    if len(whole) > 1 and (path / "trainer_state.json").is_file():
        return []
    return sorted(folder for folder in whole if not whole.intersection(folder.parents))


def _run_files(folder: Path) -> list[Path]:
    """Event files of a run and its parts. A folder with very many more holds other runs as well."""
    own, within = _event_files(folder), _event_files(folder, "*")
    if len(own) + len(within) > MAX_FILES:
        within = [file for file in within if file.parent.name in SPLIT_FOLDERS]
    return own + within


def _event_files(folder: Path, depth: str = "") -> list[Path]:
    return [
        file for file in folder.glob(f"{depth}/*{FILE_NAME_PART}*".lstrip("/")) if file.is_file()
    ]


@dataclass
class EventLog:
    """One file, up to where it ends at that moment."""

    file: EventFile
    reader: LogReader
    decoder: ScalarDecoder
    folder_tags: FolderTags
    pending_config: ConfigMetadata = field(default_factory=dict)
    """What was said of the configuration, and is to be told."""
    pending_row: dict[str, float] = field(default_factory=dict)
    """What was said of `step` at `time`, and may not be all of it."""
    seen_tags: set[str] = field(default_factory=set)
    step: int = 0
    time: float = 0.0
    last_growth_at: float = 0.0

    def complete_rows(self) -> Iterator[TimedRow]:
        """The rows that became whole; the last one once nothing follows it."""
        while payloads := self.file.poll():
            self.last_growth_at = self.reader.clock()
            yield from self._add_payloads(payloads)
        self._count_damage()
        quiet = self.reader.clock() - self.last_growth_at
        if self.pending_row and (not self.reader.is_live or quiet >= MAX_ROW_GAP_SECONDS):
            yield self._finish_row()

    def _add_payloads(self, payloads: list[bytes]) -> Iterator[TimedRow]:
        for payload in payloads:
            try:
                said = self.decoder.decode(payload)
            except ValueError:
                self.reader.skipped += 1
                continue
            if (
                not said
                and self.folder_tags.holds_run_config
                and (news := decode_config(payload)) is not None
            ):
                self.pending_config |= news.metadata
            for time, step, logged, value in said:
                tag, row = self.folder_tags[logged], self.pending_row
                if not tag:
                    continue
                if row and (
                    step != self.step or tag in row or abs(time - self.time) > MAX_ROW_GAP_SECONDS
                ):
                    yield self._finish_row()
                self.pending_row[tag] = value
                self.step, self.time = step, time

    def _finish_row(self) -> TimedRow:
        row, self.pending_row = self.pending_row, {}
        count = len(row)
        # A tag of such a name says less than the event.
        row["step"], row["time"] = self.step, self.time
        return self.time, self, row, count

    def _count_damage(self) -> None:
        self.reader.skipped += self.file.damaged_records
        self.file.damaged_records = 0


class TensorBoardRun:
    """All files of one run, their rows in the order of time."""

    def __init__(self, path: Path, reading: LogReader) -> None:
        self.path, self.reader = path, reading
        self.folder = _run_folder(path) if path.is_dir() else None
        self.logs: dict[Path, EventLog] = {}
        self.decoder = ScalarDecoder()
        self.converter = RowConverter(run=(self.folder or path.parent).resolve().name)
        known = read_config_file(path)
        self.pending_config = known.metadata if known is not None else ConfigMetadata()
        self.seen_tags: set[str] = set()
        self.max_step = -1
        self.attempt = 0
        self.has_started = False

    def records(self) -> Iterator[Record | None]:
        while True:
            self._find_new_files()
            logs = [log.complete_rows() for log in self.logs.values()]
            for _, log, row, count in merge(*logs, key=lambda told: told[0]):
                self.reader.position += count
                yield from self._row_records(log, row)
            if not self.reader.is_live:
                return
            self.reader.pending_count = sum(len(log.pending_row) for log in self.logs.values())
            yield None

    def _find_new_files(self) -> None:
        """Find files that are new."""
        if self.folder is None and self.path.is_dir():
            self.folder = _run_folder(self.path)
        folder = self.folder
        names = _run_files(folder) if folder else [self.path]
        if len(names) > MAX_FILES:
            raise ValueError(f"it holds {len(names)} event files, over {MAX_FILES}: name one")
        for name in sorted(names):
            if name not in self.logs:
                inner = name.parent.name if folder and name.parent != folder else ""
                self.logs[name] = EventLog(
                    EventFile(name), self.reader, self.decoder, FolderTags(inner)
                )

    def _pop_config(self) -> ConfigMetadata:
        """What the files said of the configuration since it was told."""
        news, self.pending_config = self.pending_config, ConfigMetadata()
        for log in self.logs.values():
            news |= log.pending_config
            log.pending_config = ConfigMetadata()
        self.converter.metadata.update_metadata(text_metadata(news))
        return news

    def _row_records(self, log: EventLog, row: dict[str, float]) -> Iterator[Record]:
        step = int(row["step"])
        again = not log.seen_tags and step <= self.max_step and not self.seen_tags.isdisjoint(row)
        if again:
            self.attempt, self.converter.step_filter = self.attempt + 1, StepFilter()
        log.seen_tags.update(row)
        news = self._pop_config()
        record = self.converter.to_record(row)
        if record is None:
            self.reader.skipped += 1
            return
        if again or not self.has_started:
            yield self._start_record(record)
        if news:
            yield replace(config_record(news, record), attempt=self.attempt)
        self.has_started = True
        self.seen_tags.update(row.keys() - {"step", "time"})
        self.max_step = step if again else max(self.max_step, step)
        yield replace(record, attempt=self.attempt) if self.attempt else record

    def _start_record(self, record: Record) -> Record:
        facts = self.converter.metadata.metadata
        return Record(
            run=record.run,
            rank=WHOLE_RUN,
            step=record.step,
            time=record.time,
            event=Event.START,
            attributes=facts,
            attempt=self.attempt,
        )


TimedRow = tuple[float, EventLog, dict[str, float], int]
"""Time, file, row, and how many numbers went into it."""
