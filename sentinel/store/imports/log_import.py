"""Imports the log of a run into a database, which is then read like that of any other run.

The records go through the pipeline of the agent, and its consumers store the results. A log that
grows can be followed after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from math import isfinite
from pathlib import Path
from time import time as now_seconds
from typing import Self

from sentinel.config.settings import Settings
from sentinel.model.counters import Counters
from sentinel.model.record import UNKNOWN_OUTCOME, YEAR_2001, Event, Record
from sentinel.pipeline import pipeline
from sentinel.pipeline.engine import Result
from sentinel.pipeline.replay import Replay, ReplayResult
from sentinel.readers.follow import END_OF_RUN_KEY, LogFollower
from sentinel.readers.format_detection import open_log
from sentinel.readers.image_bytes import identify_image, read_image
from sentinel.readers.log_folder import log_files
from sentinel.readers.media import LoggedMedia
from sentinel.readers.rows import MAX_STEPS_KEYS
from sentinel.readers.sample_files import has_sample_files, read_newest_samples
from sentinel.store.database import connect, transaction
from sentinel.store.history import History
from sentinel.store.media import MediaStore
from sentinel.store.samples import SampleStore

RECORDS_PER_COMMIT = 1000
"""Records that are stored together: readers of the database see so many more at a time."""
SETTLED_SECONDS = 600.0
"""A log that was not written for so long is taken to be complete; a step may take minutes."""
FOLLOW_INTERVAL_SECONDS = 0.25
SETTLED_CHECK_SECONDS = 5.0
MAX_KNOWN_MEDIA = 100_000
_MAX_COUNTED_BYTES = 2**28


def is_settled(path: Path, now: float) -> bool:
    """Whether a log was not written for `SETTLED_SECONDS`, or cannot be followed."""
    if now - last_written(path) > SETTLED_SECONDS:
        return True
    try:
        open_log(path, is_live=True)
    except (OSError, ValueError):
        return True
    return False


def last_written(path: Path) -> float:
    """When the newest file of a log was written, in seconds since the epoch; 0 if unknown."""
    times = [0.0]
    for file in log_files(path):
        with suppress(OSError):
            times.append(file.stat().st_mtime)
    return max(times)


class LogImport:
    """The import of one log into a new database: `read` or `follow`, once. A context manager."""

    def __init__(self, path: Path, settings: Settings, database: Path, run: str = "") -> None:
        self.path, self._run, self._settings = path, run, settings
        self._connection = connect(database)
        self._counters = Counters()
        self._media = _MediaConsumer(MediaStore(self._connection))
        self._samples = SampleStore(self._connection, settings.max_samples)
        self._known_samples: set[str] = set()
        consumers = (History(self._connection), self._samples)

        def store(result: Result) -> None:
            for consumer in consumers:
                consumer.update(result)

        self._replay = Replay(pipeline.build(settings, self._counters), store)
        self._end_state = _EndState()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def read(
        self, on_commit: Callable[[int], None] = lambda _: None, *, is_ended: bool = True
    ) -> ReplayResult:
        """Read the log to its end, which is that of the run if it `is_ended`.

        `on_commit` is called with the number of records read so far whenever some were stored.
        Raises OSError and ValueError if the log cannot be read or holds no record of a step.
        """
        reader = replace(open_log(self.path), keys=self._settings.keys, on_media=self._media.add)
        records = _with_times(reader, self.path)
        while self._process(islice(records, RECORDS_PER_COMMIT)):
            on_commit(self._replay.record_count)
        self._read_samples()
        if is_ended:
            self.end()
        result = self._replay.result(reader)
        if not result.records:
            raise ValueError("it holds no record of a step")
        return result

    def follow(
        self,
        wait: Callable[[float], bool],
        on_poll: Callable[[int, bool], None] = lambda _count, _is_caught_up: None,
        clock: Callable[[], float] = now_seconds,
    ) -> bool:
        """Read the log, and what is appended to it, until it is settled; whether it is.

        `wait` waits for some seconds and returns whether to go on. `on_poll` is called before each
        poll with the number of records so far, and whether all that was there was read.
        """
        follower = LogFollower(
            self._run or self.path.stem,
            self.path,
            self._counters,
            # What is there already was written by then, and not now.
            clock=lambda: (
                min(clock(), last_written(self.path)) if follower.is_catching_up else clock()
            ),
            keys=self._settings.keys,
            on_media=self._media.add,
        )
        checked_at, was_settled = -SETTLED_CHECK_SECONDS, False
        while True:
            is_caught_up = not follower.is_catching_up and not follower.has_unread
            on_poll(self._replay.record_count, is_caught_up)
            if is_caught_up and clock() - checked_at >= SETTLED_CHECK_SECONDS:
                checked_at, was_settled = clock(), is_settled(self.path, clock())
                self._read_samples()
            self._process(follower.poll())
            if was_settled and not follower.has_unread:
                self.end()
                return True
            if not follower.has_unread and not wait(FOLLOW_INTERVAL_SECONDS):
                return False

    def end(self) -> None:
        """Let detectors judge what they could not exclude before the end."""
        with transaction(self._connection, mode="immediate"):
            self._replay.end(self._end_state.outcome)

    def copy_to(self, path: Path) -> None:
        """Copy the database as it is to a new file. Raises sqlite3.Error."""
        with closing(connect(path)) as copy:
            self._connection.backup(copy)

    def _process(self, records: Iterable[Record]) -> int:
        """Process and store the records together; how many there were."""
        before = self._replay.record_count
        with transaction(self._connection, mode="immediate"):
            self._replay.process(map(self._name, records))
        return self._replay.record_count - before

    def _name(self, record: Record) -> Record:
        self._end_state.update(record)
        return replace(record, run=self._run) if self._run else record

    def _read_samples(self) -> None:
        """Store the texts that TRL wrote beside its log; detectors do not read them."""
        if not has_sample_files(self.path):
            return
        maximum = self._settings.max_samples
        with transaction(self._connection, mode="immediate"):
            for record in read_newest_samples(self._run, self.path, maximum, self._known_samples):
                self._samples.update(Result(record))


@dataclass
class _EndState:
    """Whether the log states the end of the run."""

    max_steps: int = 0
    outcome: str = UNKNOWN_OUTCOME

    def update(self, record: Record) -> None:
        for key in MAX_STEPS_KEYS:
            limit = record.values.get(key, 0.0)
            if isfinite(limit) and limit > 0:
                self.max_steps = int(limit)
        if record.event is Event.STEP:
            is_last = END_OF_RUN_KEY in record.values or 0 < self.max_steps <= record.step
            self.outcome = "finished" if is_last else UNKNOWN_OUTCOME


@dataclass
class _MediaConsumer:
    """Stores the images and histograms that a reader finds, each once though it reads again."""

    store: MediaStore
    known: set[tuple[object, ...]] = field(default_factory=set)

    def add(self, media: LoggedMedia) -> None:
        key = (media.name, media.step, media.time, media.kind, media.source, media.offset)
        if key in self.known:
            return
        if len(self.known) < MAX_KNOWN_MEDIA:
            self.known.add(key)
        at = (media.name, media.step, media.time, media.kind)
        if media.source is None:
            self.store.add(*at, "application/json", body=media.body.encode())
            return
        try:
            info = identify_image(read_image(media.source, media.offset, media.length))
        except (OSError, ValueError):
            return
        if info is not None:
            self.store.add(
                *at,
                info.content_type,
                width=info.width,
                height=info.height,
                source=media.source,
                offset=media.offset,
                length=media.length,
            )


def _with_times(records: Iterable[Record], path: Path) -> Iterator[Record]:
    """The records; those without a time get one, such that the last is when the log was written.

    Their rows count as seconds, as in a replay.
    """
    written = last_written(path)
    base = 0.0
    for record in records:
        if record.time > YEAR_2001:
            yield record
            continue
        base = base or written - _count_lines(path)
        yield replace(record, time=base + record.time)


def _count_lines(path: Path) -> int:
    count, counted = 0, 0
    with suppress(OSError), path.open("rb") as file:
        while counted < _MAX_COUNTED_BYTES and (data := file.read(2**20)):
            count, counted = count + data.count(b"\n"), counted + len(data)
    return count
