"""TensorBoard: event files of one run, a file or a folder of them, read as they are written.

Every number comes as an event of its own; those of one step, written together, are one row. A run
that was begun again writes a new file: where it says again what was said before, from a step that
was passed already, it is a new attempt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import merge
from pathlib import Path

from sentinel.record import WHOLE_RUN, Event, Record
from sentinel.sources.counters import Counters
from sentinel.sources.event_file import HEAD, EventFile
from sentinel.sources.reading import Reading
from sentinel.sources.rows import Rows
from sentinel.sources.scalar_event import ScalarEvents

IN_NAME = "tfevents"
BEGINNING = b"brain.Event:"
"""What the first event of every file says of its version."""

MOST_FILES = 256
TOGETHER_SECONDS = 5.0
"""Numbers of one step that are further apart were not written together."""


def recognises(path: Path, head: bytes) -> bool:
    """Whether this is an event file, by its first event, or a folder of some."""
    if path.is_dir():
        return _folder(path) is not None
    return BEGINNING in head[HEAD : HEAD + 64] or (IN_NAME in path.name and head[4:8] == bytes(4))


def read(path: Path) -> Reading:
    """Records of the run. Raises OSError or ValueError, while iterating, if unreadable."""

    def records(reading: Reading) -> Iterator[Record | None]:
        return Logs(path, reading).records()

    return Reading(records)


def _folder(path: Path) -> Path | None:
    """The folder itself, or the one below it that has all the event files, as `runs/<date>`."""
    if _named(path):
        return path
    if any(path.glob("checkpoint-*")):
        return None
    found = {file.parent for depth in ("*", "*/*") for file in _named(path, depth)}
    return found.pop() if len(found) == 1 else None


def _named(folder: Path, depth: str = "") -> list[Path]:
    return [file for file in folder.glob(f"{depth}/*{IN_NAME}*".lstrip("/")) if file.is_file()]


@dataclass
class Log:
    """One file, up to where it ends at that moment."""

    file: EventFile
    reading: Reading
    events: ScalarEvents
    row: dict[str, float] = field(default_factory=dict)
    """What was said of `step` at `time`, and may not be all of it."""
    tags: set[str] = field(default_factory=set)
    step: int = 0
    time: float = 0.0
    grew: float = 0.0

    def rows(self) -> Iterator[Row]:
        """The rows that became whole; the last one once nothing follows it."""
        while payloads := self.file.poll():
            self.grew = self.reading.clock()
            yield from self._take(payloads)
        self._count_damage()
        quiet = self.reading.clock() - self.grew
        if self.row and (not self.reading.live or quiet >= TOGETHER_SECONDS):
            yield self._close()

    def _take(self, payloads: list[bytes]) -> Iterator[Row]:
        for payload in payloads:
            try:
                said = self.events.read(payload)
            except ValueError:
                self.reading.skipped += 1
                continue
            for time, step, tag, value in said:
                row = self.row
                if row and (
                    step != self.step or tag in row or abs(time - self.time) > TOGETHER_SECONDS
                ):
                    yield self._close()
                self.row[tag] = value
                self.step, self.time = step, time

    def _close(self) -> Row:
        row, self.row = self.row, {}
        count = len(row)
        # A tag of such a name says less than the event.
        row["step"], row["time"] = self.step, self.time
        return self.time, self, row, count

    def _count_damage(self) -> None:
        self.reading.skipped += self.file.skipped
        self.file.skipped = 0


class Logs:
    """All files of one run, their rows in the order of time."""

    def __init__(self, path: Path, reading: Reading) -> None:
        self.path, self.reading = path, reading
        self.folder = _folder(path) if path.is_dir() else None
        self.files: dict[Path, Log] = {}
        self.events = ScalarEvents()
        self.rows = Rows(run=(self.folder or path.parent).resolve().name)
        self.said: set[str] = set()
        self.highest = -1
        self.attempt = 0
        self.begun = False

    def records(self) -> Iterator[Record | None]:
        while True:
            self._look()
            logs = [log.rows() for log in self.files.values()]
            for _, log, row, count in merge(*logs, key=lambda told: told[0]):
                self.reading.mark += count
                yield from self._told(log, row)
            if not self.reading.live:
                return
            yield None

    def _look(self) -> None:
        """Find files that are new."""
        if self.folder is None and self.path.is_dir():
            self.folder = _folder(self.path)
        names = _named(self.folder) if self.folder else [self.path]
        if len(names) > MOST_FILES:
            raise ValueError(f"it holds {len(names)} event files, over {MOST_FILES}: name one")
        for name in sorted(names):
            if name not in self.files:
                self.files[name] = Log(EventFile(name), self.reading, self.events)

    def _told(self, log: Log, row: dict[str, float]) -> Iterator[Record]:
        step = int(row["step"])
        again = not log.tags and step <= self.highest and not self.said.isdisjoint(row)
        if again:
            self.attempt, self.rows.counters = self.attempt + 1, Counters()
        log.tags.update(row)
        record = self.rows.record(row)
        if record is None:
            self.reading.skipped += 1
            return
        if again or not self.begun:
            yield self._start(record)
        self.begun = True
        self.said.update(row.keys() - {"step", "time"})
        self.highest = step if again else max(self.highest, step)
        yield replace(record, attempt=self.attempt) if self.attempt else record

    def _start(self, record: Record) -> Record:
        facts = self.rows.about.facts
        return Record(
            run=record.run,
            rank=WHOLE_RUN,
            step=record.step,
            time=record.time,
            event=Event.START,
            facts=facts,
            attempt=self.attempt,
        )


Row = tuple[float, Log, dict[str, float], int]
"""Time, file, row, and how many numbers went into it."""
