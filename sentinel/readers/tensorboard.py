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
from sentinel.readers.config_event import settings
from sentinel.readers.event_file import HEAD, EventFile
from sentinel.readers.log_config import beside, stating, texts
from sentinel.readers.log_reader import Reading
from sentinel.readers.rows import Rows
from sentinel.readers.scalar_event import ScalarEvents
from sentinel.readers.step_counter import Counters
from sentinel.readers.tensorboard_dirs import PARTS, Part
from sentinel.signals.framework_config import Facts

IN_NAME = "tfevents"
BEGINNING = b"brain.Event:"
"""What the first event of every file says of its version."""

MOST_FILES = 256
MOST_SHOWN = 10
TOGETHER_SECONDS = 5.0
"""Numbers of one step that are further apart were not written together."""


def recognises(path: Path, head: bytes) -> bool:
    """Whether this is an event file, by its first event, or a folder of some."""
    if path.is_dir():
        return bool(_folders(path))
    return BEGINNING in head[HEAD : HEAD + 64] or (IN_NAME in path.name and head[4:8] == bytes(4))


def read(path: Path) -> Reading:
    """Records of the run. Raises OSError or ValueError, while iterating, if unreadable."""

    def records(reading: Reading) -> Iterator[Record | None]:
        return Logs(path, reading).records()

    return Reading(records)


def _folder(path: Path) -> Path | None:
    """The folder itself, or the one below it that has all the event files, as `runs/<date>`.

    Raises ValueError if there are several.
    """
    found = _folders(path)
    if len(found) > 1:
        names = ", ".join(str(folder.relative_to(path)) for folder in found[:MOST_SHOWN])
        raise ValueError(f"it holds the event files of {len(found)} runs: name one of {names}")
    return found[0] if found else None


def _folders(path: Path) -> list[Path]:
    """Folders of runs, as far as they are not parts of one."""
    if _named(path) or any(_named(path / part) for part in PARTS):
        return [path]
    if any(path.glob("checkpoint-*")):
        return []
    found = {file.parent for depth in ("*", "*/*") for file in _named(path, depth)}
    whole = {folder.parent if folder.name in PARTS else folder for folder in found}
    if len(whole) > 1 and (path / "trainer_state.json").is_file():
        return []
    return sorted(folder for folder in whole if not whole.intersection(folder.parents))


def _of_run(folder: Path) -> list[Path]:
    """Event files of a run and its parts. A folder with very many more holds other runs as well."""
    own, within = _named(folder), _named(folder, "*")
    if len(own) + len(within) > MOST_FILES:
        within = [file for file in within if file.parent.name in PARTS]
    return own + within


def _named(folder: Path, depth: str = "") -> list[Path]:
    return [file for file in folder.glob(f"{depth}/*{IN_NAME}*".lstrip("/")) if file.is_file()]


@dataclass
class Log:
    """One file, up to where it ends at that moment."""

    file: EventFile
    reading: Reading
    events: ScalarEvents
    part: Part
    facts: Facts = field(default_factory=dict)
    """What was said of the configuration, and is to be told."""
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
            if not said and self.part.ours and (news := settings(payload)) is not None:
                self.facts |= news.facts
            for time, step, logged, value in said:
                tag, row = self.part[logged], self.row
                if not tag:
                    continue
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
        known = beside(path)
        self.facts = known.facts if known is not None else Facts()
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
            self.reading.held = sum(len(log.row) for log in self.files.values())
            yield None

    def _look(self) -> None:
        """Find files that are new."""
        if self.folder is None and self.path.is_dir():
            self.folder = _folder(self.path)
        folder = self.folder
        names = _of_run(folder) if folder else [self.path]
        if len(names) > MOST_FILES:
            raise ValueError(f"it holds {len(names)} event files, over {MOST_FILES}: name one")
        for name in sorted(names):
            if name not in self.files:
                inner = name.parent.name if folder and name.parent != folder else ""
                self.files[name] = Log(EventFile(name), self.reading, self.events, Part(inner))

    def _news(self) -> Facts:
        """What the files said of the configuration since it was told."""
        news, self.facts = self.facts, Facts()
        for log in self.files.values():
            news |= log.facts
            log.facts = Facts()
        self.rows.about.learn(texts(news))
        return news

    def _told(self, log: Log, row: dict[str, float]) -> Iterator[Record]:
        step = int(row["step"])
        again = not log.tags and step <= self.highest and not self.said.isdisjoint(row)
        if again:
            self.attempt, self.rows.counters = self.attempt + 1, Counters()
        log.tags.update(row)
        news = self._news()
        record = self.rows.record(row)
        if record is None:
            self.reading.skipped += 1
            return
        if again or not self.begun:
            yield self._start(record)
        if news:
            yield replace(stating(news, record), attempt=self.attempt)
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
